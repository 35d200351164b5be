"""The recipe of `thing`, the package that test_proof_of_extensions.py makes. Not a test itself."""

from aerie.extensions.onhost.proofs import Kernel, Pair, Recipe


def prepare(torch):
    import thing

    return Pair(lambda: [torch.Numbers(thing.double([1.0, 4.0]))], lambda: [torch.Numbers([2.0, 8.0])])


RECIPE = Recipe(
    imports=("thing",),
    library=lambda arch: "thing/kernels.so",
    kernels=(
        Kernel(name="double, 2 numbers", tolerance=0.01, prepare=prepare),
        Kernel(name="double, FP4", tolerance=0.01, prepare=prepare, least=100),
    ),
)
