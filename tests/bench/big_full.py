#!/usr/bin/env python3
"""All of GLM-5.2 through an import: 59,585 tensors in 282 files, 1.5 TB, at 4 threads. About 15 minutes
on two cores.

    python tests/bench/big_full.py

The elements are the zeros of sparse files and the output is compressed, 250 MB on the disk. The room
that an import asks for is that of real weights, so BENCH_DIR has to be on a file system that says it
has 950 GB free; a tmpfs mounted with size=2T does. Each byte is read, hashed twice (tile and frame),
compressed and placed as any other is. Then the checkpoint goes from TP 1 to TP 8, PP 13, EP 32, whose
frames are copied, and both are compared.

Promised: at most 512 MB."""
import common
import results


def main():
    figures = []
    folder = common.scratch(950)
    if folder is None:
        print("SKIP full: BENCH_DIR has no 950 GB free")
        return
    with folder as name:
        top = common.pathlib.Path(name)
        b, one, many = common.BIN, top / "tp1", top / "tp8"
        common.Run([common.TOOLS / "toy", "--config", common.CONFIGS / "glm-5.2.json", "--out",
                    top / "src", "--files", "282", "--sparse"])
        tail = ["--quiet", "--threads", "4"]
        for label, words in (
                ("import", [b / "glm-import", top / "src", one, "--compress", "zstd", *tail]),
                ("reshard, TP1 to TP8 PP13 EP32", [b / "glm-reshard", one, many, "--tp", "8", "--pp",
                                                   "13", "--ep", "32", *tail]),
                ("diff", [b / "glm-verify", "diff", one, many, *tail])):
            run = common.Run(words)
            print(f"  {label}: {run.seconds:.0f} s, {run.peak_mb:.0f} MB", flush=True)
            figures.append(results.figure(f"{label} of all of GLM-5.2", "s", "lower",
                                          [run.seconds]))
            figures.append(common.at_most(f"{label} of all of GLM-5.2, peak", "MB", run.peak_mb, 512))
    results.show(figures)
    results.write("full", "tests/bench/big_full.py", figures)


main()
