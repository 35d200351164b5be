"""SpecForge's command line as far as a training shows itself: a log, and checkpoints that it goes on from.

python -m trainer_stand_in train -c train.yaml [training.resume_from=CHECKPOINT | model.draft_checkpoint_path=DRAFTER]

Of the environment: EVALUATED, the accuracies of its evaluations one after the other, the last one for all after it;
DIES_AFTER, "STEP" or "STEP PLACE" with the place `evaluated`, `saved` or `noted`: where it kills itself.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import yaml

config = yaml.safe_load(Path(sys.argv[3]).read_text())
given = dict(argument.split("=", 1) for argument in sys.argv[4:])
output, training = Path(config["output_dir"]), config["training"]
output.mkdir(exist_ok=True)
first = int(given.get("training.resume_from", "-step0").rpartition("-step")[2]) + 1
accuracies = [float(one) for one in os.environ.get("EVALUATED", "0.5").split()]
note = output / "drafter.best_meta.json"
held = json.loads(note.read_text()) if note.exists() else {"step": 0, "score": -1.0}


def dies(step: int, place: str) -> None:
    if os.environ["DIES_AFTER"] in (f"{step} {place}", str(step) if place == "noted" else None):
        os.kill(os.getpid(), 9)


def save(step: int) -> None:
    for path in output.glob("drafter-step*"):
        if int(path.name.removeprefix("drafter-step")) >= step:
            shutil.rmtree(path)
    (checkpoint := output / f"drafter-step{step}").mkdir()
    for name in ("training_state.pt", "training_state_rank0.pt"):
        (checkpoint / name).write_text(f"weights of step {step}")
    steps = sorted(int(path.name.removeprefix("drafter-step")) for path in output.glob("drafter-step*"))
    for old in steps[: -training["max_checkpoints"]]:
        if old != held["step"]:
            shutil.rmtree(output / f"drafter-step{old}")


for step in range(first, training["max_steps"] + 1):
    print(f"step {step}: {{'acc_0': 0.5, 'loss': {10 / step}, 'grad_norm': 0.1}}", flush=True)
    is_best, score = False, 0.0
    if step % training.get("eval_interval", step + 1) == 0:
        score = accuracies[: step // training["eval_interval"]][-1]
        print(f"step {step}: {{'eval/per_position_acc': [{score}]}}", flush=True)
        is_best = score > held["score"]
        dies(step, "evaluated")
    if is_best or step % training["save_interval"] == 0 or step == training["max_steps"]:
        save(step)
        dies(step, "saved")
    if is_best:
        held = {"step": step, "score": score}
        note.write_text(json.dumps(held))
    dies(step, "noted")
