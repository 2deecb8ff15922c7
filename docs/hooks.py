"""A hook of MkDocs: the site holds docs/ alone; links to other files lead to a list of them on the page."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder, files = posixpath.dirname(page.file.src_uri), dict[str, int]()

    def shown(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[3]))
        if target == "docs" or target.startswith("docs/"):
            return match[0]
        return f"[{match[2]}](#file-{files.setdefault(target, len(files) + 1)})"

    text = LINK.sub(shown, markdown)
    rows = (f'<li id="file-{number}"><code>{target}</code></li>\n' for target, number in files.items())
    return f"{text}\n\n## Files in the repository\n\n<ol>\n{''.join(rows)}</ol>\n" if files else text
