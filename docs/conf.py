"""Sphinx configuration: `make docs` builds these pages into docs/_build, without a network."""

import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from docs.configuration_files import arguments, comment_of
from marlflow import __version__

project = "marlflow"
author = copyright = "The marlflow developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = f"marlflow {release}"
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["deflist"]
# Headings are targets of links, as on GitHub: `concepts.md#place`. Three levels of them are in use.
myst_heading_anchors = 4
# GitHub draws ```mermaid blocks too. A browser fetches the script that draws them; it cannot do so offline.
myst_fence_as_directive = ["mermaid"]
# Blocks without a language are commands and what they print.
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
mermaid_height = "auto"
# The plan of a run is wide: a button shows it on the whole screen.
mermaid_fullscreen = True


def as_restructured_text(_app: Sphinx, _what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Rewrite Markdown's `code` as ``code``, and escape the asterisk of a shape such as [N, *shape]."""
    text = re.sub(r"(?<![`:])`([^`\n]+)`(?!`)", r"``\1``", "\n".join(lines))
    lines[:] = re.sub(r"(?<=[\[ ])\*(?=\w)", r"\\*", text).split("\n")


def with_settings(_app: Sphinx, what: str, _name: str, of: Any, options: dict[str, Any], lines: list[str]) -> None:
    """Explain the arguments of a dataclass whose members are not listed, by the comments of its fields."""
    if what == "class" and is_dataclass(of) and not options.get("members"):
        names = [field.name for field in arguments(of)]
        lines += ["", *(f":param {name}: {comment_of(of, name)}".replace("|", r"\|") for name in names)]


def with_whole_comments(_app: Sphinx, what: str, _name: str, _of: Any, _options: Any, lines: list[str]) -> None:
    """Put an empty remark before the comment of a field, or napoleon reads the words before a colon as a type."""
    if what == "attribute":
        lines[:0] = ["..", ""]


def with_readable_defaults(
    _app: Sphinx, _what: str, _name: str, _of: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write a dataclass field's default factory as `...`, because Sphinx cannot parse `<factory>`."""
    return signature and signature.replace("<factory>", "..."), returns


def setup(app: Sphinx) -> None:
    """Connect the functions above to autodoc."""
    app.connect("autodoc-process-docstring", with_whole_comments, priority=400)
    app.connect("autodoc-process-docstring", with_settings, priority=400)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("autodoc-process-signature", with_readable_defaults)
