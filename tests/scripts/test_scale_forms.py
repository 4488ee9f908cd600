#!/usr/bin/env python3
"""Scales of every type and block that an import takes: the commands that turn codes into numbers give
code times scale, as computed here from the definitions; a folder equals its own checkpoint. Those that
an import does not take are refused in a sentence, with nothing left.

    test_scale_forms.py [NAME...]

Prints "ok NAME" or "FAIL NAME: why". Needs nothing but Python. The scales differ from block to block,
in every type by a few bits of mantissa, so that each product is exact in F32."""
import array
import math
import os
import pathlib
import shutil
import struct
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "field"))
from harness import Failure, Place, Tensor, answer, equal, expect, same, works  # noqa: E402

# Several rows of blocks, ragged ones, a stack, the MTP layer: numbers in Python are slow.
LOOKED_AT = ["model.layers.0.self_attn.q_b_proj.weight", "model.layers.0.mlp.down_proj.weight",
             "model.layers.1.mlp.experts.5.gate_proj.weight",
             "model.layers.5.self_attn.kv_a_proj_with_mqa.weight"]
FORMS = {  # type of the scales, their block, options of the toy that has it
    "f32 128x128": ("F32", (128, 128), ("--fp8", "128,128")),
    "bf16 128x128": ("BF16", (128, 128), ("--fp8", "128,128")),
    "e8m0 128x128": ("F8_E8M0", (128, 128), ("--fp8", "128,128")),
    "bf16 16x32": ("BF16", (16, 32), ("--fp8", "16,32")),
    "f32 1x64": ("F32", (1, 64), ("--fp8", "1,64")),
    "f32 1x128": ("F32", (1, 128), ("--fp8", "1,128")),
    "bf16 1x128": ("BF16", (1, 128), ("--fp8", "1,128")),
    "e8m0 1x128": ("F8_E8M0", (1, 128), ("--fp8", "1,128")),
    "e8m0 1x32": ("F8_E8M0", (1, 32), ("--mx", "e8m0")),
    "u8 1x32": ("U8", (1, 32), ("--mx", "u8")),
}
WORDS = {"F32": ("<%df", 4), "BF16": ("<%dH", 2), "F8_E8M0": ("%dB", 1), "U8": ("%dB", 1)}


def scale_number(dtype, k):
    """The k-th scale of a tensor: a power of two, with some mantissa where the type has one."""
    whole = 1 if WORDS[dtype][1] == 1 else 1 + k * 5 % 8 / 8
    return math.ldexp(whole, k * 7 % 11 - 8)


def scale_bytes(dtype, count):
    def word(x):
        if dtype == "F32":
            return x
        if dtype == "BF16":
            return struct.unpack("<I", struct.pack("<f", x))[0] >> 16
        return math.frexp(x)[1] - 1 + 127
    return struct.pack(WORDS[dtype][0] % count, *(word(scale_number(dtype, k)) for k in range(count)))


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    x = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -x if code & 128 else x


CODES = [e4m3(c) for c in range(256)]


def numbers(weight, dtype, block):
    """Code times scale, as the bytes of F32."""
    rows, cols = weight.shape
    wide = -(-cols // block[1])
    out = array.array("f")
    for r in range(rows):
        for c in range(cols):
            scale = scale_number(dtype, r // block[0] * wide + c // block[1])
            out.append(CODES[weight.data[r * cols + c]] * scale)
    return out.tobytes()


def model_of(p, dtype, block, options):
    m = p.model(*options)
    for tensors in m.files.values():
        for name, t in tensors.items():
            if "_scale" in name:
                tensors[name] = Tensor(dtype, t.shape, scale_bytes(dtype, math.prod(t.shape)))
    m.save()
    return m


def check_numbers(found, wanted, what):
    for name in LOOKED_AT:
        expect(found[name] == wanted[name], f"{what}: {name} is not code times scale")


def check_commands(p, m, wanted):
    ckpt, wide = p.checkpoint(m.folder, "--tp", "2"), p.new("ckpt")
    works("glm-convert", "--quiet", "--dtype", "f32", ckpt, wide)
    check_numbers(p.exported(wide).tensors, wanted, "glm-convert")
    check_numbers(p.exported(ckpt, "--dtype", "f32").tensors, wanted, "glm-export")
    direct = p.checkpoint(m.folder, "--dtype", "f32")
    check_numbers(p.exported(direct).tensors, wanted, "glm-import")
    for a, b, *options in ((m.folder, ckpt), (m.folder, ckpt, "--atol", "0"), (ckpt, m.folder),
                           (m.folder, wide, "--atol", "0"), (wide, ckpt, "--atol", "0"),
                           (wide, direct)):
        equal(a, b, *options)
    check_inspect(ckpt, m.folder, wanted)


def check_inspect(ckpt, folder, wanted):
    """The greatest magnitude, in a checkpoint and in a model's folder."""
    for name in LOOKED_AT:
        values = array.array("f", wanted[name].data)
        top = max(abs(x) for x in values if x == x)
        for where in (ckpt, folder):
            found = answer("glm-inspect", where, name)["statistics"]["absmax"]
            same(found, top, f"greatest magnitude of {name} in {where.name}")


def check_form(p, dtype, block, options):
    m = model_of(p, dtype, block, options)
    tensors = m.tensors
    check_commands(p, m, {n: Tensor("F32", tensors[n].shape, numbers(tensors[n], dtype, block))
                          for n in LOOKED_AT})


def check_suffix(p):
    """Scales whose names end in .scale keep that name, also where a folder is compared."""
    m = p.model("--fp8", "128,128")
    m.rename("", ".weight_scale_inv", ".scale")
    ckpt = p.checkpoint(m.save())
    equal(m.folder, ckpt)
    name = LOOKED_AT[0].replace(".weight", ".scale")
    for where in (m.folder, ckpt):
        works("glm-inspect", where, name)


def check_e5m2(p):
    m = p.model("--fp8", "128,128")
    t = m.tensors[LOOKED_AT[1]]
    t.dtype = "F8_E5M2"
    p.refused("glm-import", m.save(), "1 weights of F8_E5M2 with a scale", LOOKED_AT[1])


def check_unit_blocks(p):
    m = p.model("--fp8", "1,1", config="tiny-a")
    p.refused("glm-import", m.folder, "blocks of 1x1", "weight_block_size")


def check_other_weight(p):
    """A matrix that stays BF16 in a checkpoint's forms, with codes and a scale of its own."""
    name, wanted = "model.layers.1.mlp.gate.weight", "'model.layers.1.mlp.gate.weight' has scales"
    m = p.model("--fp8", "128,128")
    tensors = m.files[m.file_of(name)]
    count = math.prod(tensors[name].shape)
    scales = [-(-n // 128) for n in tensors[name].shape]
    tensors[name] = Tensor("F8_E4M3", tensors[name].shape, bytes(i % 127 for i in range(count)))
    tensors[name + "_scale_inv"] = Tensor("F32", scales, scale_bytes("F32", math.prod(scales)))
    p.refused("glm-import", m.save(), wanted)
    found = p.exported(p.checkpoint(m.folder, "--dtype", "f32")).tensors[name]
    same(found.data, numbers(tensors[name], "F32", (128, 128)), name)


TESTS = {name: (lambda p, f=form: check_form(p, *f)) for name, form in FORMS.items()}
TESTS.update({"the suffix .scale": check_suffix, "e5m2 is refused": check_e5m2,
              "blocks of 1x1 are refused": check_unit_blocks,
              "scales of a weight that has none": check_other_weight})


def main(names):
    top = pathlib.Path(tempfile.mkdtemp(prefix="glm-scales-"))
    Place.shared = top
    failed = 0
    try:
        for name, test in TESTS.items():
            if names and name not in names:
                continue
            place = Place(top)
            try:
                test(place)
                print(f"ok {name}", flush=True)
            except Exception as why:  # a test that breaks has failed; the others go on
                failed += 1
                kind = "" if isinstance(why, Failure) else f"{type(why).__name__}: "
                print(f"FAIL {name}: {kind}{' '.join(str(why).split())}", flush=True)
            shutil.rmtree(place.top, ignore_errors=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
