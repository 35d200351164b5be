"""Two kernels in PTX, and what they must give.

PTX, because the driver compiles it on the host: that is how a driver too old for its toolkit was seen to give wrong
data with exit code 0. The oldest PTX that knows every card from Volta on, so that a failure is not its doing.
"""

import struct

__all__ = ["COPY", "COPY_PTX", "STAMP", "STAMP_PTX", "stamped"]

_HEAD = ".version 6.4\n.target sm_70\n.address_size 64\n"
# The thread's number in %i; those beyond the count do nothing.
_INDEX = """\
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mad.lo.u32 %i, %block, %size, %i;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %i, %count;
    @%outside bra DONE;
"""
STAMP, COPY = "stamp", "copy"
_FACTOR = 2654435761  # odd, near 2^32 divided by the golden ratio: neighbours get words without likeness

# words[i] = (i ^ seed) * _FACTOR; above them, to try floats too: words[count + i] = bits of (i & 0xffff) * 0.5 + seed.
STAMP_PTX = f"""{_HEAD}
.visible .entry stamp(.param .u64 words, .param .u32 count, .param .u32 seed)
{{
    .reg .pred %outside;
    .reg .b32 %i, %block, %size, %count, %seed, %word, %small;
    .reg .f32 %value, %start;
    .reg .b64 %base, %place, %above;
{_INDEX}\
    ld.param.u64 %base, [words];
    ld.param.u32 %seed, [seed];
    cvta.to.global.u64 %base, %base;
    xor.b32 %word, %i, %seed;
    mul.lo.u32 %word, %word, {_FACTOR};
    mul.wide.u32 %place, %i, 4;
    add.u64 %place, %base, %place;
    st.global.u32 [%place], %word;
    and.b32 %small, %i, 65535;
    cvt.rn.f32.u32 %value, %small;
    cvt.rn.f32.u32 %start, %seed;
    fma.rn.f32 %value, %value, 0f3F000000, %start;
    mul.wide.u32 %above, %count, 4;
    add.u64 %above, %place, %above;
    st.global.f32 [%above], %value;
DONE:
    ret;
}}
"""

COPY_PTX = f"""{_HEAD}
.visible .entry copy(.param .u64 target, .param .u64 source, .param .u32 count)
{{
    .reg .pred %outside;
    .reg .b32 %i, %block, %size, %count, %word;
    .reg .b64 %to, %from, %offset;
{_INDEX}\
    ld.param.u64 %to, [target];
    ld.param.u64 %from, [source];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %to, %to, %offset;
    add.u64 %from, %from, %offset;
    ld.global.u32 %word, [%from];
    st.global.u32 [%to], %word;
DONE:
    ret;
}}
"""


def stamped(count: int, seed: int) -> bytes:
    """What `stamp` must leave in 2 x count words of memory. seed: below 2^16, so that every float is exact."""
    words = struct.pack(f"<{count}I", *(((i ^ seed) * _FACTOR) & 0xFFFFFFFF for i in range(count)))
    return words + struct.pack(f"<{count}f", *((i & 0xFFFF) * 0.5 + seed for i in range(count)))
