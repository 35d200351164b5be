"""The few calls of the CUDA driver API that the proof needs, through the driver's own library: no toolkit is asked for.

Names and argument lists are those of the CUDA Driver API reference; `_v2` where the plain name is the old 32-bit one.
"""

import ctypes
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["WORD", "Cuda", "CudaError", "Device", "Kernel"]

WORD = 4  # bytes
PEER_ACCESS_ALREADY_ENABLED = 704
ATTRIBUTE_NATIVE_ATOMICS = 3  # of cuDeviceGetP2PAttribute
THREADS = 256  # of a block


class CudaError(Exception):
    """A call that the driver refused: its name, its number and the driver's own word for that."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that is opened. index: the driver's, in the order of the bus when CUDA_DEVICE_ORDER is PCI_BUS_ID."""

    index: int
    handle: int
    context: int
    name: str
    uuid: str
    bus_id: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of a module that was compiled by the driver for one device."""

    device: Device
    function: int


class Cuda:
    """The driver. Raises OSError where there is none, and CudaError where it does not start."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)

    def count(self) -> int:
        """GPUs that CUDA sees."""
        number = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def open(self, index: int) -> Device:
        """Take the device's primary context; it is given back when the process ends."""
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        name, bus, raw = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGet", ctypes.byref(handle), index)
        self._call("cuDeviceGetName", name, len(name), handle)
        self._call("cuDeviceGetPCIBusId", bus, len(bus), handle)
        self._call("cuDeviceGetUuid_v2", raw, handle)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        return Device(
            index=index,
            handle=handle.value,
            context=context.value or 0,
            name=name.value.decode(errors="replace"),
            uuid=f"GPU-{uuid.UUID(bytes=bytes(raw))}",
            bus_id=bus.value.decode(errors="replace"),
        )

    def compile(self, device: Device, ptx: str, name: str) -> Kernel:
        """Let the driver compile PTX for the device, as it does for code without machine code for the card."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._enter(device)
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
        self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return Kernel(device, function.value or 0)

    def launch(self, kernel: Kernel, arguments: Sequence[Any], words: int) -> None:
        """Start one thread for each of `words`; arguments are ctypes values in the kernel's order. Does not wait."""
        self._enter(kernel.device)
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments)
        )
        grid = (-(-words // THREADS), 1, 1)
        self._call("cuLaunchKernel", ctypes.c_void_p(kernel.function), *grid, THREADS, 1, 1, 0, None, pointers, None)

    def wait(self, device: Device) -> None:
        """Until all that was started on the device is done. An error of a kernel shows here."""
        self._enter(device)
        self._call("cuCtxSynchronize")

    @contextmanager
    def memory(self, device: Device, size: int) -> Iterator[int]:
        """Memory of the device, by its address, zeroed."""
        address = ctypes.c_uint64()
        self._enter(device)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
            self._call("cuCtxSynchronize")
            yield address.value
        finally:
            self._enter(device)
            self._call("cuMemFree_v2", address)

    def read(self, device: Device, address: int, size: int) -> bytes:
        """A copy of the device's memory."""
        target = ctypes.create_string_buffer(size)
        self._enter(device)
        self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return target.raw

    def copy_to_peer(self, source: Device, address: int, target: Device, to: int, size: int) -> None:
        """Copy between two devices; directly where they have access to each other. Does not wait."""
        self._enter(target)
        self._call(
            "cuMemcpyPeerAsync",
            *(ctypes.c_uint64(to), ctypes.c_void_p(target.context)),
            *(ctypes.c_uint64(address), ctypes.c_void_p(source.context)),
            *(ctypes.c_size_t(size), None),
        )

    def can_access(self, device: Device, peer: Device) -> bool:
        """Whether the driver says that `device` can read and write the peer's memory."""
        answer = ctypes.c_int()
        self._call("cuDeviceCanAccessPeer", ctypes.byref(answer), device.handle, peer.handle)
        return bool(answer.value)

    def has_native_atomics(self, device: Device, peer: Device) -> bool:
        """Whether the link carries atomic operations; symmetric memory hangs where it does not (vllm#47979)."""
        answer = ctypes.c_int()
        self._call(
            "cuDeviceGetP2PAttribute",
            ctypes.byref(answer),
            ATTRIBUTE_NATIVE_ATOMICS,
            *(device.handle, peer.handle),
        )
        return bool(answer.value)

    def enable_access(self, device: Device, peer: Device) -> None:
        """Let kernels on `device` use the peer's memory by its address."""
        self._enter(device)
        try:
            self._call("cuCtxEnablePeerAccess", ctypes.c_void_p(peer.context), 0)
        except CudaError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise

    def _enter(self, device: Device) -> None:
        self._call("cuCtxSetCurrent", ctypes.c_void_p(device.context))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"an error without a name").decode())
