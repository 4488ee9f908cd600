"""Writes the named seeds of corpus/safetensors, corpus/index_json, corpus/config, corpus/idx,
corpus/tokens, corpus/recipe, corpus/http_headers and corpus/hub_tree: one file per rule, named after what it shows. Standard library only.
What fuzzing found worth keeping lies beside them under names of hex digits and is left alone."""
import hashlib
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
CORPUS = HERE / "corpus"


def put(where, name, data):
    folder = CORPUS / where
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def tensor(name, dtype, shape, begin, end):
    return f'"{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'


def header(name, text, data=0):
    text = text if isinstance(text, bytes) else text.encode()
    put("safetensors", name, b"\0" + data.to_bytes(2, "little") + text)


def file(name, content, length=None):
    n = b"" if length is None else length.to_bytes(8, "little")
    put("safetensors", name, b"\1" + n + content)


def safetensors():
    t = tensor
    header("two-tensors", "{" + t("b", "BF16", "2,3", 4, 16)
           + ',"__metadata__":{"format":"pt"},' + t("a", "F32", "", 0, 4) + "}  ", 16)
    header("zero-sized", " {" + t("a", "F32", "0,7", 0, 0) + "," + t("b", "I8", "0", 0, 0) + "}")
    header("escaped-name", "{" + t('a\\"\\u00e9\\n', "U8", "1", 0, 1) + "}", 1)
    header("sub-byte", "{" + t("a", "F4", "4", 0, 2) + "," + t("b", "F6_E3M2", "4", 2, 5) + "}", 5)
    header("sub-byte-odd", "{" + t("a", "F4", "3", 0, 2) + "}", 2)
    header("many", "{" + ",".join(t(f"t{i}", "U8", "1", i, i + 1) for i in range(70)) + "}", 70)
    header("empty-object", "{}")
    header("metadata-empty", '{"__metadata__":{}}')
    header("metadata-number", '{"__metadata__":{"a":1}}')
    header("metadata-broken", '{"__metadata__":{"a"}}')
    header("metadata-twice", '{"__metadata__":{},"__metadata__":{}}')
    header("hole", "{" + t("a", "U8", "4", 0, 4) + "," + t("b", "U8", "4", 5, 9) + "}", 9)
    header("overlap", "{" + t("a", "U8", "4", 0, 4) + "," + t("b", "U8", "4", 3, 7) + "}", 7)
    header("trailing-bytes", "{" + t("a", "U8", "4", 0, 4) + "}", 6)
    header("cut-data", "{" + t("a", "U8", "4", 0, 4) + "}", 3)
    header("twice", "{" + t("a", "U8", "1", 0, 1) + "," + t("a", "U8", "1", 1, 2) + "}", 2)
    header("wrong-size", "{" + t("a", "BF16", "4", 0, 4) + "}", 4)
    header("overflow", "{" + t("a", "F32", "4294967296,4294967296", 0, 4) + "}", 4)
    header("beyond-int64", "{" + t("a", "U8", "9223372036854775808", 0, 1) + "}", 1)
    header("unknown-dtype", "{" + t("a", "F9", "1", 0, 1) + "}", 1)
    header("rank-9", "{" + t("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1) + "}", 1)
    header("negative", "{" + t("a", "U8", "-1", 0, 1) + "}", 1)
    header("real", "{" + t("a", "U8", "1.0", 0, 1) + "}", 1)
    header("backwards", "{" + t("a", "U8", "1", 2, 1) + "}", 2)
    header("offset-real", "{" + t("a", "U8", "1", "1e0", 2) + "}", 1)
    header("no-dtype", '{"a":{"shape":[1],"data_offsets":[0,1]}}', 1)
    header("no-shape", '{"a":{"dtype":"U8","data_offsets":[0,1]}}', 1)
    header("no-offsets", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}', 1)
    header("unknown-field", '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"s":[1]}}', 1)
    header("field-twice", '{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)
    header("not-an-object", '{"a":5}')
    header("text-value", '{"a":"x"}')
    header("no-value", '{"a":}')
    header("no-colon", '{"a" 1}')
    header("no-comma", "{" + t("a", "U8", "1", 0, 1) + " 5}", 1)
    header("no-key", "{a:1}")
    header("no-brace", "x{}")
    header("no-end", '{"a":{')
    header("string-no-end", '{"a\\')
    header("inner-string-no-end", '{"a":{"b')
    header("text-ends", '{"a"')
    header("after-the-object", "{}x")
    header("brackets-mixed", '{"a":{]}')
    header("nul-in-name", '{"a\\u0000b":{}}')
    header("bad-escape", '{"a\\x":{}}')
    header("raw-newline", '{"a\nb":{}}')
    header("deep", '{"a":' + "[" * 40)
    header("long-string", '{"a":{"dtype":"' + "x" * 66000 + '"}}')
    header("long-key", '{"' + "k" * 66000 + '":{}}')
    header("long-entry", '{"a":{"shape":[' + "1," * 34000 + "1]}}")
    header("long-number", '{"a":' + "1" * 66000 + "}")
    header("hostile-name", "{" + t("\\u001b[31m" + "n" * 200, "F9", "", 0, 1) + "}", 1)
    header("utf8", "{" + t("é€😀aaaaaaaaaaaaaaaa", "U8", "1", 0, 1) + "}", 1)
    for name, bad in (("alone", b"\x80"), ("overlong", b"\xe0\x80\x80"), ("surrogate", b"\xed\xa0\x80"),
                      ("short", b"\xe2\x82"), ("beyond", b"\xf4\x90\x80\x80")):
        header("not-utf8-" + name, b'{"' + bad + b'"')
    file("file", b"{" + t("a", "U8", "2", 0, 2).encode() + b"}ab", 52 - 0)
    body = b"{" + t("a", "U8", "2", 0, 2).encode() + b"}"
    file("file-good", body + b"ab", len(body))
    file("file-empty", b"")
    file("file-short", b"abc")
    file("file-length-1", b"{", 1)
    file("file-length-huge", b"{}", 1 << 60)
    file("file-cut-header", b"{}", 100)
    file("file-lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    file("file-html", b"\n<!DOCTYPE html><html>")
    file("file-gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abc")
    file("file-gzip-plausible", b"\x03\x1f\x8b" + b"\0" * 40, 20)
    file("file-html-plausible", b"x" * 80, 0x3c)


def index():
    p = lambda name, text: put("index_json", name, text)
    good = '"x":"a.safetensors","y":"a.safetensors","both":"a.safetensors","z":"b.safetensors"'
    p("good", '{"metadata":{"total_size":4},"weight_map":{%s}}' % good)
    p("total-size-wrong", '{"metadata":{"total_size":5},"weight_map":{%s}}' % good)
    p("total-size-text", '{"metadata":{"total_size":"5"},"weight_map":{%s},"more":[1]}' % good)
    p("in-two-files", ' {"weight_map":{%s}}' % good)
    p("wrong-file", '{"weight_map":{"x":"b.safetensors"}}')
    p("nowhere", '{"weight_map":{"ghost":"b.safetensors"}}')
    p("no-such-file", '{"weight_map":{"x":"c.safetensors"}}')
    p("not-named", '{"weight_map":{"x":"a.safetensors","z":"b.safetensors"}}')
    p("stale-file", '{"weight_map":{"x":"a.safetensors","y":"a.safetensors","both":"a.safetensors"}}')
    p("twice", '{"weight_map":{"x":"a.safetensors","x":"a.safetensors"}}')
    p("leaves-the-folder", '{"weight_map":{"x":"../a.safetensors"}}')
    p("map-twice", '{"weight_map":{},"weight_map":{}}')
    p("map-list", '{"weight_map":[]}')
    p("value-number", '{"weight_map":{"x":1}}')
    p("value-missing", '{"weight_map":{"x":}}')
    p("map-key", '{"weight_map":{x:1}}')
    p("map-key-escape", '{"weight_map":{"\\x":"a"}}')
    p("no-map", "{}")
    p("metadata-broken", '{"metadata":{"a"}}')
    p("metadata-no-end", '{"metadata":{')
    p("key-escape", '{"\\x":1}')
    p("not-an-object", "[]")
    p("after-the-object", "{} x")
    p("empty", "")
    p("not-utf8", b'{"\xff":1}')


def config():
    base = json.loads((HERE / "../../fixtures/configs/t1.json").read_text())
    p = lambda name, **changes: put("config", name, json.dumps(
        {k: v for k, v in {**base, **changes}.items() if v != "GONE"}))
    p("t1")
    for key in base:
        p("without-" + key, **{key: "GONE"})
        p("bad-" + key, **{key: {"a": [1]}})
    fp8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": "ue8m0"}
    p("fp8", quantization_config=fp8)
    p("fp8-block-32", quantization_config={**fp8, "weight_block_size": [1, 32]})
    p("fp8-block-text", quantization_config={**fp8, "weight_block_size": "x"})
    p("fp8-block-zero", quantization_config={**fp8, "weight_block_size": [0, 1]})
    p("mxfp8", quantization_config={"quant_method": "mxfp8", "group_size": 32})
    p("mxfp8-group-text", quantization_config={"quant_method": "mxfp8", "group_size": "x"})
    p("modelopt", quantization_config={"quant_method": "modelopt", "quant_algo": "MXFP8"})
    p("quant-unknown", quantization_config={"quant_method": "awq"})
    p("quant-list", quantization_config=[])
    p("torch-dtype", dtype="GONE", torch_dtype="torch.float32")
    p("dtype-unknown", dtype="int3")
    p("num-experts", n_routed_experts="GONE", num_experts=12)
    p("experts-disagree", n_routed_experts="GONE", num_experts=12, num_local_experts=13)
    p("experts-default", num_experts_per_tok="GONE", n_routed_experts=4)
    p("groups", n_group=5)
    p("rope-top", rope_parameters="GONE", rope_theta=1e6)
    p("rope-disagrees", rope_theta=1e6)
    p("rope-nested-bad", rope_parameters={"rope_theta": "x"})
    p("bias", attention_bias=True)
    p("mlp-bias", mlp_bias=True)
    p("kv-heads", num_key_value_heads=4)
    p("qk-head", qk_head_dim=41)
    p("types-short", indexer_types=["full"])
    p("types-word", indexer_types=["full", "full", "full", "part", "full"])
    p("types-disagree", indexer_types=["full"] * 5)
    p("first-shared", indexer_types=["shared"] * 5, index_topk_freq="GONE")
    p("pattern-text", indexer_types="GONE", index_topk_pattern="FFFSS")
    p("pattern-list", indexer_types="GONE", index_topk_pattern=["F", "F", "F", "S", "S"])
    p("pattern-long-list", index_topk_pattern=["full", "full", "full", "shared", "shared"])
    p("pattern-bad", index_topk_pattern="FFX")
    p("pattern-disagrees", index_topk_pattern="FSSSS")
    p("frequency-only", indexer_types="GONE")
    p("frequency-no-offset", indexer_types="GONE", index_skip_topk_offset="GONE")
    p("offset-gone", index_skip_topk_offset="GONE")
    p("dense-by-count", mlp_layer_types="GONE")
    p("dense-unknown", mlp_layer_types="GONE", first_k_dense_replace="GONE")
    p("dense-count-bad", mlp_layer_types="GONE", first_k_dense_replace=-1)
    p("long-text", model_type="x" * 300)
    put("config", "empty", "")
    put("config", "list", "[]")
    put("config", "not-json", '{"model_type": "glm_moe_dsa", "hidden\x01": tru}')
    put("config", "key-twice", '{"a": 1, "a": 2}')
    put("config", "beyond-int64", '{"vocab_size": 99999999999999999999}')


def idx():
    def one(name, sizes=(2, 0, 3), marks=(0, 1, 1, 3), code=8, width=2, bin_size=None, version=1,
            magic=b"MMIDIDX\0\0", pointers=None, counts=None, tail=b""):
        if pointers is None:
            pointers = [sum(sizes[:i]) * width for i in range(len(sizes))]
        n = counts or (len(sizes), len(marks))
        head = magic + struct.pack("<QBQQ", version, code, *n)
        body = b"".join(struct.pack(f"<{len(v)}{c}", *v) for v, c in ((sizes, "i"), (pointers, "q"),
                                                                      (marks, "q")))
        length = sum(sizes) * width if bin_size is None else bin_size
        put("idx", name, struct.pack("<I", length) + head + body + tail)
    for code, width in ((1, 1), (2, 1), (3, 2), (4, 4), (5, 8), (8, 2)):
        one(f"type-{code}", code=code, width=width)
    for code in (0, 6, 7, 9, 255):
        one(f"type-{code}", code=code)
    one("many", sizes=[1] * 5000, marks=list(range(0, 5001)))
    one("many-marks", sizes=[1] * 9000, marks=[0] + [4500] * 5000 + [9000])
    one("empty-data", sizes=(0, 0), marks=(0, 1, 2))
    one("nothing", sizes=(), marks=(0,))
    one("one-mark", marks=(0,))
    one("multimodal", tail=bytes(3))
    one("tail", tail=bytes(4))
    one("version-2", version=2)
    one("magic", magic=b"MMIDIDY\0\0")
    one("negative", sizes=(2, -1, 3), bin_size=8)
    one("beyond", bin_size=8)
    one("short", bin_size=12)
    one("odd", bin_size=11)
    one("pointer", pointers=(0, 4, 6))
    one("pointer-negative", pointers=(0, 4, -4))
    one("marks-fall", marks=(0, 2, 1, 3))
    one("marks-first", marks=(1, 2, 3))
    one("marks-last", marks=(0, 1, 2))
    one("marks-beyond", marks=(0, 4, 3))
    one("counts-huge", counts=(2**61, 4))
    one("marks-huge", counts=(3, 2**61))
    put("idx", "cut", struct.pack("<I", 0) + b"MMIDIDX\0\0")


def tokens():
    def hexa(data):
        return hashlib.sha256(data).hexdigest()

    def one(name, ids=(1, 2, 3, 4), marks=(0, 1, 1, 4), mask=None, wide=False, flag=0, edit=None,
            largest=None, at=(4096, 4200, 4300), tail=b"end"):
        data = struct.pack(f"<{len(ids)}{'i' if wide else 'H'}", *ids)
        parts = [(at[0], len(ids), data), (at[1], len(marks) - 1, struct.pack(f"<{len(marks)}q", *marks)),
                 (at[2], len(mask), bytes(mask)) if mask is not None else (0, 0, b"")]
        whole, used = bytearray(5000), set()
        for offset, _, d in parts:
            if offset and offset + len(d) <= 5000:
                whole[offset:offset + len(d)] = d
                used |= set(range(offset, offset + len(d)))
        whole += tail
        rest = bytes(b for i, b in enumerate(whole) if i >= 4096 and i not in used)
        text = f"GLMDATA 1\nsize {len(whole)}\ndtype {'I32' if wide else 'U16'}\n"
        text += f"largest {max(ids) if largest is None else largest}\n"
        for word, (offset, n, d) in zip(("tokens", "documents", "mask"), parts):
            text += f"{word} {offset} {n} {hexa(d)}\n"
        text += f"rest {hexa(rest)}\n"
        text += f"self {hexa(text.encode())}\n"
        whole[:len(text)] = text.encode()
        if edit:
            whole = edit(whole)
        put("tokens", name, bytes([flag]) + bytes(whole))

    def flip(i):
        return lambda w: w[:i] + bytes([w[i] ^ 1]) + w[i + 1:]
    one("plain")
    one("wide", wide=True, ids=(7, 154879, 3, 0))
    one("mask", mask=(1, 0, 1, 1))
    one("mask-first", mask=(1, 0, 1, 1), at=(4300, 4200, 4096))
    one("mask-two", mask=(1, 2, 1, 1))
    one("mask-short", mask=(1, 0, 1))
    one("negative", wide=True, ids=(1, -5, 3, 4), largest=4)
    one("largest-wrong", largest=9)
    one("largest-huge", largest=2**40)
    one("marks-fall", marks=(0, 3, 2, 4))
    one("marks-first", marks=(1, 2, 4))
    one("marks-last", marks=(0, 2, 3))
    one("overlap", at=(4096, 4100, 4300))
    one("outside", at=(4096, 9000, 4300))
    one("before", at=(4000, 4200, 4300))
    one("grown", edit=lambda w: w + b"x")
    one("cut", edit=lambda w: w[:4000])
    one("words", edit=lambda w: b"x" + w[1:])
    one("no-rest", edit=lambda w: w.replace(b"rest", b"best"))
    one("number", edit=lambda w: w.replace(b"size ", b"size x"))
    one("number-huge", edit=lambda w: w.replace(b"largest 4", b"largest 99999999999999999999"))
    one("type", edit=lambda w: w.replace(b"U16", b"U17"))
    one("digest", edit=lambda w: w.replace(b"rest ", b"rest z"))
    one("digest-cut", edit=lambda w: w[:w.index(b"rest") + 9] + bytes(len(w) - w.index(b"rest") - 9))
    one("zeros", edit=flip(4090))
    one("flip-tokens", edit=flip(4097))
    one("flip-documents", edit=flip(4201))
    one("flip-rest", edit=flip(4999))
    one("resealed", flag=1, edit=flip(4097))


def recipe():
    recipes = HERE.parents[1] / "fixtures/recipes"
    tiny = ("ARGS: {lr: 1e-3, micro_batch_size: 2, global_batch_size: 4, seq_length: 8, "
            "train_iters: 9%s}\n")
    config = "GLM: {model: fixtures/configs/tiny-a.json%s}\n"

    def one(name, text, options=0):
        put("recipe", name, bytes([options]) + text.encode())

    def more(name, args="", glm="", before="", options=0):
        args = ", " + args if args else ""
        glm = ", " + glm if glm else ""
        one(name, before + tiny % args + config % glm, options)

    proxy = (recipes / "glm52-proxy.yaml").read_text()
    one("proxy", proxy)
    one("proxy-plan", proxy, 1)
    one("proxy-ignore", "mtp_num_layers=1\nmtp_detach_heads\n" + proxy, 7)
    one("mtp-ignored", "MODEL_CONFIG\n" + tiny % ", mtp_num_layers: 7" + config % "", 5)
    more("tiny")
    one("from-args", tiny % (", num_layers: 3, hidden_size: 64, num_attention_heads: 2, "
        "q_lora_rank: 8, num_experts: 4, moe_ffn_hidden_size: 8, moe_shared_expert_intermediate_size: "
        "8, dsa_indexer_n_heads: 2, dsa_indexer_head_dim: 80, dsa_indexer_topk: 4, vocab_size: 99, "
        "moe_layer_freq: '2*[0]+([1]+[])*1', mtp_num_layers: 1"))
    one("from-args-shared", tiny % (", num_layers: 3, hidden_size: 64, num_attention_heads: 2, "
        "q_lora_rank: 8, num_experts: 4, moe_ffn_hidden_size: 7, moe_shared_expert_intermediate_size: "
        "8, dsa_indexer_n_heads: 2, dsa_indexer_head_dim: 80, dsa_indexer_topk: 4, vocab_size: 99"))
    more("set", before="lr=2\n", options=2)
    more("set-null", before="GLM.keep_last=null\n", glm="keep_last: 3", options=2)
    more("set-list", before="data=[1, a]\n", options=2)
    more("set-list-null", before="data=\n", glm="data: x", options=2)
    more("set-layout-null", before="muon_layout=~\n", glm="muon_layout: [{tensor: x}]", options=2)
    for name, text in {"no-key": "=1", "no-value": "lr", "unknown": "lrr=1", "broken": "lr=[",
                       "two": "lr=1, x: 2"}.items():
        more("set-" + name, before=text + "\n", options=2)
    more("ignore-unknown", before="mtp_num_layer\n", options=4)
    for name, args in {
            "both-counts": "train_samples: 3", "wrong-counts": "lr_decay_samples: 3",
            "warmup-twice": "lr_warmup_iters: 1, lr_warmup_fraction: .1",
            "warmup-long": "lr_warmup_iters: 99", "wsd": "lr_decay_style: WSD",
            "wsd-long": "lr_decay_style: WSD, lr_wsd_decay_iters: 99",
            "wsd-good": "lr_decay_style: WSD, lr_wsd_decay_iters: 3", "min-lr": "min_lr: 2",
            "init": "lr_warmup_init: 2", "decay": "weight_decay_incr_style: cosine",
            "decay-one": "end_weight_decay: 1", "types": "bf16: yes, fp16: on",
            "decay-good": "weight_decay_incr_style: linear, start_weight_decay: 0, end_weight_decay: 1",
            "kinds": "seed: x", "real": "clip_grad: nan", "bool": "bf16: maybe", "word": "split: {}",
            "list-text": "data_path: .3 a 1 b", "list": "data_path: [a, 'b c', \"\\x01\\x81\\u2028\\uffff\"]",
            "list-weights": "data_path: 1 a b", "list-zero": "data_path: 0 a", "list-map": "data_path: {}",
            "list-deep": "data_path: [[a]]", "mock": "mock_data: true, data_path: a",
            "split": "split: '[1,2]'", "split-bad": "split: 1x", "split-none": "split: 0",
            "loss": "dsa_indexer_loss_coeff: 1", "end": "eod_mask_loss: true",
            "sizes": "num_layers: 9", "theta": "rotary_base: 1", "layers": "moe_layer_freq: [1, 0]",
            "dense": "moe_layer_freq: '[0]*8'", "shares": "dsa_indexer_topk_freq: 2",
            "mtp-off": "mtp_num_layers: 0", "unbuilt": "fp8: e4m3", "neutral": "manual_gc: [1]",
            "unknown": "adam_beta: 1", "other-section": "run_dir: x", "hyphens": "--weight-decay: 0",
            "alias-twice": "muon_nesterov: true, muon_use_nesterov: true",
            "eval": "eval_interval: 1, split: '1'", "topology": "tensor_model_parallel_size: 4, "
            "pipeline_model_parallel_layout: 'Et*4|t*4mL'", "ranks": "expert_model_parallel_size: 99999"
    }.items():
        more(name, args)
    for i, text in enumerate(["[0]*9", "0", "[2]", "[1", "(", "[1]*5)", "9999*[1]", "3*4", "[1,]", "x",
                              "[0]*3+[1]*5x", "(((((((((((((((((((("]):
        more(f"freq-{i}", f"moe_layer_freq: '{text}'")
    for i, text in enumerate(["x", "[x]", "[{rows: [1]}]", "[{tensor: x, row: 1}]",
                              "[{tensor: x, rows: [0]}]", "[{tensor: x, rows: 1}]",
                              "[{tensor: x, rows: [1], policy: [each, each]}]",
                              "[{tensor: x, rows: [1], policy: [all]}]",
                              "[{tensor: x, policy: adamw}, {tensor: y, rows: [1, 2], "
                              "policy: [each, gathered]}]",
                              "[{tensor: x, rows: [1, 2], policy: [each, adamw]}]"]):
        more(f"layout-{i}", glm="muon_layout: " + text)
    for name, glm in {"warmup": "stages: indexer_warmup", "rl": "stages: rl_safe",
                      "dense": "stages: dense", "run-dir": "run_dir: a", "cuda": "device: cuda",
                      "end": "end_token: 9999", "both": "load: fixtures/configs/tiny-a.json"}.items():
        more("glm-" + name, glm=glm)
    one("checkpoint", tiny % "" + "GLM: {load: fixtures/configs/}\n")
    one("no-config", tiny % "" + "GLM: {model: fixtures/configs/none}\n")
    one("no-model", tiny % "")
    one("save", tiny % ", save: x" + config % "")
    one("joint", tiny % ", dsa_indexer_loss_coeff: 1, dsa_indexer_use_sparse_loss: true" + config % "")
    one("warm", tiny % ", dsa_indexer_loss_coeff: 1" + config % ", stages: indexer_warmup")
    for i, text in enumerate(["", "- 1", "ARGS:", "ARGS: 3", "ARGS: &a {}", "ARGS: {lr: *a}",
                              "ARGS: {lr: !x 1}", "ARGS: {lr: 1, lr: 2}", "ARGS: {[a]: 1}", "ARGS: [",
                              "ARGS: {}\n---\nGLM: {}", "ARGS: " + "[" * 40, "lr: 1", "ARG: {}",
                              "MODEL: {}", "ENV_VARS: {}\nNAME: x", 'ARGS: {"a\\0b": 1}',
                              'ARGS: {lr: "1\\0"}', "zzzzzzzzzz: 1"]):
        one(f"yaml-{i}", text)


def http_headers():
    def one(name, *lines, status="HTTP/1.1 200 OK"):
        put("http_headers", name, "".join(f"{x}\r\n" for x in (status, *lines, "")))

    digest, commit = "0123456789abcdef" * 4, "0123456789abcdef" * 2 + "01234567"
    one("whole", "Content-Length: 1234", f'ETag: "{commit}"', "Content-Type: text/plain",
        f"X-Repo-Commit: {commit}")
    one("part", "Content-Range: bytes 10-19/100", "Content-Length: 10",
        status="HTTP/1.1 206 Partial Content")
    one("part-of-unknown", "content-range: bytes 0-0/*", status="HTTP/1.1 206 Partial Content")
    one("beyond", "Content-Range: bytes */100", status="HTTP/1.1 416 Range Not Satisfiable")
    for i, text in enumerate(["bytes 5-4/9", "bytes 5-9/9", "bytes 1-2/x", "bytes 1", "bytes 1-",
                              "bytes 1-2", "items 1-2/3", "bytes 1-2/99999999999999999999", "b"]):
        one(f"range-{i}", f"Content-Range: {text}", status="HTTP/1.1 206 x")
    one("range-twice", "Content-Range: bytes 0-1/2", "Content-Range: bytes 0-0/2")
    one("range-twice-the-same", "Content-Range: bytes 0-1/2", "Content-Range: bytes 0-1/2")
    one("length-twice", "Content-Length: 1", "Content-Length: 2")
    one("length-twice-the-same", "Content-Length: 1", "Content-Length: 1")
    one("length-no-number", "Content-Length: 1a")
    one("length-too-big", "Content-Length: 18446744073709551616")
    one("link", f'X-Linked-Etag: "{digest}"', "X-Linked-Size: 5368709120",
        f"Location: https://cdn.example.org/x?y={digest}", status="HTTP/1.1 302 Found")
    one("linked-size-no-number", "X-Linked-Size: -1")
    one("location-too-long", "Location: /" + "x" * 9000, status="HTTP/1.1 302 Found")
    one("tag-weak", f'ETag: W/"{commit}"')
    one("tag-bare", f"ETag: {digest}")
    one("tag-other", 'ETag: "5f3e-abc"')
    one("tag-upper", f'ETag: "{digest.upper()}"')
    one("encoded", "Content-Encoding: gzip")
    one("encoded-not", "Content-Encoding: identity")
    one("html", "Content-Type: text/html; charset=utf-8")
    one("limit", 'RateLimit: "api";r=0;t=55', 'RateLimit-Policy: "fixed window";"api";q=500;w=300',
        status="HTTP/1.1 429 Too Many Requests")
    one("limit-not-yet", 'RateLimit: "api"; r=3; t=55')
    one("limit-odd", 'RateLimit: ;;r=;t=x;q=1;r')
    one("retry-seconds", "Retry-After: 7", status="HTTP/1.1 503 x")
    one("retry-date", "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT", status="HTTP/1.1 503 x")
    one("retry-long", "Retry-After: 99999999999", status="HTTP/1.1 503 x")
    one("retry-both", 'RateLimit: "a";r=0;t=2', "Retry-After: 7", status="HTTP/1.1 429 x")
    one("next", 'Link: <https://example.org/a>; rel="next"')
    one("next-second", 'Link: </a>; rel="xet-auth", </b>; rel="next"')
    one("next-none", "Link: </a>; rel=next, <b")
    one("error", "X-Error-Code: RepoNotFound", "X-Error-Message: Repository\tnot found " + "x" * 300,
        status="HTTP/2 401")
    one("interim", "Link: </a>", "", "HTTP/1.1 200 OK", "Content-Length: 3",
        status="HTTP/1.1 103 Early Hints")
    one("commit-no-digits", "X-Repo-Commit: ../../etc")
    one("no-colon", "nothing", " : x", ":")
    one("spaces", "Content-Length: \t 12 \t ")
    one("status-odd", status="HTTP/1.1 abc")
    one("status-small", status="HTTP/1.1 99")
    one("status-none", status="HTTP/1.1")
    one("not-http", status="220 mail.example.org ESMTP")
    one("too-many", *(f"X-{i}: " + "x" * 8000 for i in range(40)))


def hub_tree():
    def one(name, *pages):
        texts = [p if isinstance(p, bytes) else (p if isinstance(p, str) else json.dumps(p)).encode()
                 for p in pages]
        put("hub_tree", name, b"\0".join(texts))

    def file(path, size=3, **more):
        return {"type": "file", "oid": "f2ad6c76f0115a6ba5b00456a849810e7ec0af20", "size": size,
                "path": path, **more}

    lfs = {"oid": "0123456789abcdef" * 4, "size": 5, "pointerSize": 130}
    one("list", [file("config.json"), file("model.safetensors", 5, lfs=lfs), file("a/b.json"),
                 {"type": "directory", "oid": "0" * 40, "size": 0, "path": "a"}])
    one("pages", [file("a.json")], [file("b.json")], [])
    one("empty", [])
    one("no-digest", [{"type": "file", "size": 1, "path": "x"}])
    one("digest-odd", [file("x", oid="zz"), file("y", lfs={"oid": 5})])
    one("no-type", [{"size": 1, "path": "x"}])
    for i, path in enumerate(["../x", "a/../../x", "/x", "a//b", "a/", ".", "", "..\\x", "C:x", "a\n",
                              "CON", "x" * 300, "\u00e9", "a\u0000"]):
        one(f"name-{i}", [file(path)])
    one("name-two-dots", [file("..'x"), file("a/..b")])
    one("twice", [file("config.json")], [file("config.json")])
    one("twice-by-case", [file("config.json"), file("Config.json")])
    for i, size in enumerate([-1, "3", 1.5, None, 1 << 63, 1 << 64]):
        one(f"size-{i}", [file("x", size)])
    one("no-path", [{"type": "file", "size": 1}])
    one("path-number", [file(5)])
    one("not-a-list", {"error": "no"})
    one("not-json", "[{")
    one("html", " \n<!DOCTYPE html><html></html>")
    one("deep", "[" * 3000)
    one("not-utf8", b'[{"path":"\xff"}]')
    one("key-twice", '[{"path":"a","path":"b","size":1}]')
    one("many", [file(f"f{i}") for i in range(150)])
    one("revision", "?" + json.dumps({"id": "o/n", "sha": "0123456789abcdef" * 2 + "01234567"}))
    one("revision-long", "?" + json.dumps({"sha": "0123456789abcdef" * 4}))
    one("revision-no-sha", '?{"id":"o/n"}')
    one("revision-path", '?{"sha":"../../../etc"}')
    one("revision-html", "?<html>")
    one("revision-list", "?[]")


if __name__ == "__main__":
    http_headers()
    hub_tree()
    recipe()
    idx()
    tokens()
    safetensors()
    index()
    config()
