"""SpecForge's command line as far as a training shows itself: a log, and checkpoints that it goes on from.

python -m trainer_stand_in train -c train.yaml [training.resume_from=CHECKPOINT | model.draft_checkpoint_path=DRAFTER]
"""

import os
import sys
from pathlib import Path

import yaml

config = yaml.safe_load(Path(sys.argv[3]).read_text())
given = dict(argument.split("=", 1) for argument in sys.argv[4:])
resumed = given.get("training.resume_from", "-step0")
output, training = Path(config["output_dir"]), config["training"]
output.mkdir(exist_ok=True)
for step in range(int(resumed.rpartition("-step")[2]) + 1, training["max_steps"] + 1):
    print(f"step {step}: {{'acc_0': 0.5, 'loss': {10 / step}, 'grad_norm': 0.1}}", flush=True)
    if config["data"]["eval_hidden_states_path"] and step % training["eval_interval"] == 0:
        print(f"step {step}: {{'eval/per_position_acc': [0.5]}}", flush=True)
    if step % training["save_interval"] == 0 or step == training["max_steps"]:
        (checkpoint := output / f"drafter-step{step}").mkdir()
        (output / "new").symlink_to(checkpoint.name)
        os.replace(output / "new", output / "drafter-latest")
    if step == int(os.environ.get("DIES_AFTER", "0")):
        os.kill(os.getpid(), 9)
