"""Locks: what a host must be, layer by layer; inventory/locks/<name>.lock.toml."""

from .files import load, names, path
from .model import (
    SCHEMA,
    Base,
    Cuda,
    CudaPackage,
    Driver,
    Engine,
    Interconnect,
    Kernel,
    Lock,
    Python,
    PythonEnvironment,
    Repository,
    Storage,
    Weights,
    WeightsModel,
)
from .packages import DriverPackages, driver_packages
from .variables import role_variables, with_variables

__all__ = [
    "SCHEMA",
    "Base",
    "Cuda",
    "CudaPackage",
    "Driver",
    "DriverPackages",
    "Engine",
    "Interconnect",
    "Kernel",
    "Lock",
    "Python",
    "PythonEnvironment",
    "Repository",
    "Storage",
    "Weights",
    "WeightsModel",
    "driver_packages",
    "load",
    "names",
    "path",
    "role_variables",
    "with_variables",
]
