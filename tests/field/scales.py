"""C: FP8 and MX scales. J: element types. No scale is ignored, no type guessed or changed unasked."""
import json

import ml_dtypes
import numpy as np
from harness import Tensor, changed_config, equal_tensors, expect, report, run, same, works

KV_A = "model.layers.2.self_attn.kv_a_proj_with_mqa.weight"
BIAS = "model.layers.{}.mlp.gate.e_score_correction_bias"
T1_FP8 = ("--fp8", "16,16")


def product(t, scale, block):
    """code x scale to BF16 in one rounding: the product of 4 and 24 bits is exact in double."""
    rows, cols = t.shape
    codes = np.frombuffer(t.data, ml_dtypes.float8_e4m3fn).astype(np.float64).reshape(rows, cols)
    kind = {"F32": "<f4", "F8_E8M0": ml_dtypes.float8_e8m0fnu, "U8": ml_dtypes.float8_e8m0fnu}
    s = np.frombuffer(scale.data, kind[scale.dtype]).astype(np.float64).reshape(scale.shape)
    s = np.repeat(np.repeat(s, block[0], 0), block[1], 1)[:rows, :cols]
    exact = codes * s
    near = exact.astype(np.float32)
    # A double rounds to BF16 over odd: the float below or at it, with a sticky last bit.
    bits = near.view(np.uint32)
    above = np.abs(near.astype(np.float64)) > np.abs(exact)
    bits = np.where(above, bits - np.uint32(1), bits)
    inexact = bits.view(np.float32).astype(np.float64) != exact
    bits = bits | inexact.astype(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
            >> np.uint32(16)).astype("<u2").tobytes()


def dequantised(m, suffix, block):
    out = {}
    for name, t in m.tensors.items():
        scale = m.tensors.get(name[:-len(".weight")] + suffix)
        if t.dtype == "F8_E4M3" and name.endswith(".weight"):
            out[name] = Tensor("BF16", t.shape, product(t, scale, block))
        elif not name.endswith(suffix):
            out[name] = t
    return out


def converted(p, ckpt, dtype):
    out = p.new("ckpt")
    works("glm-convert", "--quiet", "--dtype", dtype, ckpt, out)
    return out


@report("B-28")
def a_weight_and_its_scale_go_together(p):
    scale = KV_A + "_scale_inv"
    for gone, sentence in ((scale, "FP8 weights without their scale"),
                           (KV_A, "scales without their weight")):
        m = p.model(*T1_FP8)
        m.take(gone)
        p.refused("glm-import", m.save(), sentence, KV_A)
    whole = p.model(*T1_FP8)
    equal_tensors(p.exported(p.checkpoint(whole.folder)).tensors, whole.tensors)


@report("B-29")
def fp8_becomes_code_times_scale(p):
    for options, suffix, block in ((T1_FP8, ".weight_scale_inv", (16, 16)),
                                   (("--fp8", "128,128"), ".weight_scale_inv", (128, 128)),
                                   (("--mx", "e8m0"), ".weight_scale", (1, 32)),
                                   (("--mx", "u8"), ".weight_scale", (1, 32))):
        m = p.model(*options)
        wanted = dequantised(m, suffix, block)
        expect(sum(t.dtype == "F8_E4M3" for t in m.tensors.values()) > 200, "too few FP8 tensors")
        out = p.exported(converted(p, p.checkpoint(m.folder, "--tp", "2"), "bf16"))
        equal_tensors(out.tensors, wanted, f"convert of {options}")
        direct = p.exported(p.checkpoint(m.folder, "--dtype", "bf16"))
        equal_tensors(direct.tensors, wanted, f"import --dtype bf16 of {options}")
        config = json.loads((out.folder / "config.json").read_text())
        expect("quantization_config" not in config, "the configuration still says FP8")


def renamed(p, new, where=""):
    m = p.model(*T1_FP8)
    m.rename(where, ".weight_scale_inv", new)
    m.save()
    return m


def suffix_is_kept(p, suffix):
    m = renamed(p, suffix)
    ckpt = p.checkpoint(m.folder, "--tp", "2")
    equal_tensors(p.exported(ckpt).tensors, m.tensors, suffix)
    same(p.exported(converted(p, ckpt, "bf16")).tensors[KV_A],
         dequantised(p.model(*T1_FP8), ".weight_scale_inv", (16, 16))[KV_A], f"{KV_A}, {suffix}")


@report("B-31")
def scales_under_another_name_are_known_or_named(p):
    suffix_is_kept(p, ".scale")
    p.refused("glm-import", renamed(p, ".scale", "layers.5.").folder, "two names for scales",
              "model.layers.5.")
    p.refused("glm-import", renamed(p, ".factor", "layers.5.").folder, "extra", "model.layers.5.",
              ".factor")


@report("B-32")
def weight_scale_means_what_the_configuration_says(p):
    suffix_is_kept(p, ".weight_scale")
    p.refused("glm-import", renamed(p, ".weight_scale", "experts.3.").folder,
              "two names for scales", ".weight_scale_inv", "experts.3.")
    m = renamed(p, ".weight_scale")
    m.config(quantization_config=None)
    p.refused("glm-import", m.folder, "scales whose meaning is unknown", "quantization_config")


@report("B-34")
def a_block_size_comes_from_the_configuration(p):
    config = changed_config(p, intermediate_size=1000)
    m = p.model("--fp8", "128,128", config=config)
    gate = "model.layers.0.mlp.gate_proj.weight"
    same((m.tensors[gate].shape, m.tensors[gate + "_scale_inv"].shape), ([1000, 256], [8, 2]),
         "the report's shapes")
    ckpt = p.checkpoint(m.folder)
    equal_tensors(p.exported(ckpt).tensors, m.tensors)
    equal_tensors(p.exported(converted(p, ckpt, "bf16")).tensors,
                  dequantised(m, ".weight_scale_inv", (128, 128)))
    m.config(quantization_config={"quant_method": "fp8", "fmt": "e4m3"})
    p.refused("glm-import", m.folder, "block size is unknown", "weight_block_size")
    m.config(quantization_config={"quant_method": "fp8", "weight_block_size": [125, 128]})
    r = run("glm-import", "--quiet", m.folder, p.new("ckpt"))  # 1000 / 8: fits this matrix alone
    expect(r.status == 3 and "misshapen" in r.err, f"another block: {r}")


@report("B-35")
def a_square_matrix_is_not_transposed(p):
    config = changed_config(p, moe_intermediate_size=256, intermediate_size=256)
    for options in ((), T1_FP8):
        m = p.model(*options, config=config)
        down = m.tensors["model.layers.1.mlp.experts.7.down_proj.weight"]
        same(down.shape, [256, 256], "shape")
        expect(np.frombuffer(down.data, "u1").reshape(256, 256, -1).transpose(1, 0, 2).tobytes() !=
               down.data, "the fixture is symmetric")
        ckpt = p.checkpoint(m.folder, "--tp", "2", "--etp", "2")
        out = p.new("ckpt")
        works("glm-reshard", "--quiet", "--tp", "4", ckpt, out)
        equal_tensors(p.exported(out).tensors, m.tensors)


@report("B-37")
def scales_follow_their_weight_through_cuts_inside_a_block(p):
    for options in (T1_FP8, ("--fp8", "128,128"), ("--mx", "e8m0")):
        m = p.model(*options)
        first = p.checkpoint(m.folder)
        wide, back = p.new("ckpt"), p.new("ckpt")
        works("glm-reshard", "--quiet", "--tp", "8", "--ep", "4", "--etp", "2", first, wide)
        works("glm-reshard", "--quiet", "--tp", "1", wide, back)
        same({p.fingerprint(x) for x in (wide, back)}, {p.fingerprint(first)}, "fingerprints")
        for ckpt in (wide, back):
            equal_tensors(p.exported(ckpt).tensors, m.tensors, str(options))
        same(p.fingerprint(converted(p, wide, "bf16")), p.fingerprint(converted(p, first, "bf16")),
             f"converted at TP 8 and TP 1, {options}")


# ---- J: element types ---------------------------------------------------------------------------

@report("B-83")
def the_router_bias_stays_f32(p):
    m = p.model()
    biases = [BIAS.format(i) for i in range(1, 6)]
    ckpt = p.checkpoint(m.folder)
    for dtype in ("bf16", "mxfp8", "fp8"):
        out = p.exported(converted(p, ckpt, dtype)).tensors
        exported = p.exported(ckpt, "--dtype", dtype).tensors
        for name in biases:
            values = np.frombuffer(m.tensors[name].data, "<f4")
            expect(abs(values.mean() - 7) < 0.5 and len(set(values)) == 12, "fixture: near 7")
            expect(len(set(values.astype(ml_dtypes.bfloat16).tolist())) < 12,
                   "fixture: BF16 would not show")
            for found in (out[name], exported[name]):
                same(found.dtype, "F32", f"type of {name} after {dtype}")
                same(len(set(np.frombuffer(found.data, "<f4"))), 12, f"distinct values, {dtype}")
                same(found, m.tensors[name], f"{name} after {dtype}")


@report("B-85")
def known_types_are_kept_and_unknown_ones_refused(p):
    norm = "model.layers.1.input_layernorm.weight"
    data = bytes(range(256)) * 8
    for dtype, size in (("F8_E8M0", 256), ("I64", 2048), ("F4", 128), ("U8", 256), ("F64", 2048)):
        m = p.model()
        m.files[m.file_of(norm)][norm] = Tensor(dtype, [256], data[:size])
        r = run("glm-import", "--quiet", m.save(), p.new("ckpt"))
        if r.status == 0:
            equal_tensors(p.exported(r.words[-1]).tensors, m.tensors, dtype)
        else:  # four bits are no whole bytes: not kept, but said by name
            expect(dtype == "F4", str(r))
            p.refused("glm-import", m.folder, norm, "F4")
    m = p.model()
    m.files[m.file_of(norm)][norm] = Tensor("F9", [256], data[:512])
    p.refused("glm-import", m.save(), m.file_of(norm), norm, "unknown dtype 'F9'")
