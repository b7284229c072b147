"""codex: a coding agent; one process a turn, the session carried on. Its provider is OpenAI's own, at our address."""

import os
from pathlib import Path

from turns import PROMPTS, arguments, run

wire, model, url = arguments()
model = "gpt-5.5" if wire == "openai" else model  # one that codex has the facts of
Path("codex").mkdir()
os.environ |= {"CODEX_HOME": os.path.abspath("codex"), "OPENAI_API_KEY": "key", "CODEX_API_KEY": "key"}
Path("codex/config.toml").write_text(f"""
model = "{model}"
openai_base_url = "{url}/v1"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
""")
run("codex", "exec", "--skip-git-repo-check", PROMPTS[0])
for prompt in PROMPTS[1:]:
    run("codex", "exec", "resume", "--skip-git-repo-check", "--last", prompt)
