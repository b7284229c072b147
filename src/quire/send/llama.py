"""The child process of a local model server: runs llama.cpp's HTTP server until its parent goes away."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from quire.send.weights import chat_template


def main() -> None:
    """Serve as the JSON object in argv[1] says; print the address when ready; end when stdin closes."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    # The engine writes its log to stdout; only the address may go there.
    answer = os.dup(1)
    os.dup2(2, 1)
    server = _serve(options)
    os.write(answer, (server.listening_address + "\n").encode())
    threading.Event().wait()


def _serve(options: dict[str, Any]) -> Any:  # xllamacpp ships no types
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["gguf"]
    params.hostnames = ["127.0.0.1"] if isinstance(params.hostnames, list) else "127.0.0.1"
    params.port = options["port"]
    params.n_ctx = options["ctx"] * options["slots"]
    params.n_parallel = options["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.n_threads_http = 4
    params.endpoint_slots = True
    params.warmup = False
    # What /v1/models calls it; a path would tell strangers about the disk.
    params.model_alias = {options["name"] or Path(options["gguf"]).stem}
    if "SmolLM2" in Path(options["gguf"]).name:
        # What it was tuned for; and a guard, for so small a model falls into saying one sentence for ever. It
        # holds back repeated runs of tokens, not single words: what stands in the prompt may still be quoted.
        params.sampling.temp, params.sampling.top_p = 0.2, 0.9
        params.sampling.dry_multiplier, params.sampling.dry_allowed_length = 0.8, 4
        params.sampling.dry_penalty_last_n = 1024
    template = chat_template(Path(options["gguf"]))
    if "<|im_start|>" in template and "tool" not in template:
        # A template that knows no tools would silently leave calls and results out of the prompt.
        params.chat_template = Path(__file__).with_name("chatml.jinja").read_text()
    if options["cache_ram_mib"] is not None:
        params.cache_ram_mib = options["cache_ram_mib"]
    return xllamacpp.Server(params)


def _die_with_parent() -> None:
    """Closing our stdin is how the parent says stop, and what happens when it is killed."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_die_with_parent, daemon=True).start()
    main()
