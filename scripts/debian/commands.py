# SPDX-License-Identifier: Apache-2.0
"""Makes the commands of the Debian package, and the completions of three shells.

    commands.py STAGE HOME SITE     STAGE is the package's root, HOME is absolute in it; SITE has
                                    Python's packages for this machine, to run the commands
"""

import os
import subprocess
import sys
from pathlib import Path

import tomllib

SHELLS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/vendor-completions/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
SCRIPT = """#!{python} -I
import sys

from {module} import {function}

sys.exit({function}())
"""


def main() -> None:
    stage, home, site = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).absolute()
    environment = stage / home.lstrip("/")
    for file in (environment / "bin").glob("[aA]ctivate*"):
        file.unlink()
    config = environment / "pyvenv.cfg"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("command")))
    (stage / "usr/bin").mkdir(parents=True)
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        made = environment / "bin" / name
        made.write_text(
            SCRIPT.format(python=f"{home}/bin/python3", module=module, function=function)
        )
        made.chmod(0o755)
        (stage / "usr/bin" / name).symlink_to(f"..{home.removeprefix('/usr')}/bin/{name}")
        for shell, place in SHELLS.items():
            target = stage / place.format(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(complete(site, name, shell, module, function))


def complete(site: Path, name: str, shell: str, module: str, function: str) -> str:
    """The completion script of a command, which click writes."""
    variable = f"_{name.upper()}_COMPLETE"
    code = f"import sys; sys.path.insert(0, {str(site)!r}); sys.argv[0] = {name!r}\n"
    code += f"from {module} import {function}; {function}()"
    made = subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={**os.environ, variable: f"{shell}_source"},
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert variable in made, f"{name} has no completion for {shell}: {made[:100]}"
    return made


main()
