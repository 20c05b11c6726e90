"""Program that turns a GGUF file into a float32 model folder that vLLM loads.

    python -m lookahead_bench.convert GGUF_FILE TARGET_FOLDER

It is run as a process of its own, so that its memory and torch's threads are gone when it is done.
Each stage is announced on stdout; what went wrong is the last line of stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path

STAGES = ("loading libraries", "reading the tokenizer", "dequantising the weights", "writing the folder")


def convert(gguf: Path, target: Path) -> None:
    """Write config, float32 safetensors, tokenizer and chat template of ``gguf`` into ``target``."""
    print(STAGES[0], flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print(STAGES[1], flush=True)
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    print(STAGES[2], flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    print(STAGES[3], flush=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> int:
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # whatever it is, the parent shows one line of it
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
