"""The page of the project on a package index: README.md with links that lead somewhere there, and the project's URLs.

Builds call it (pyproject.toml, ``[tool.hatch.metadata.hooks.custom]``), where ``home`` is the repository's address.
While that is empty there are no URLs, and links into the repository are plain text."""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def write_description(readme: str, home: str, version: str) -> str:
    """Returns the text with absolute links: to the files of this version at ``home``, or none where it is empty."""

    def replace(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        if not home:
            return "" if image else text
        return f"{image}[{text}]({home}/{'raw' if image else 'blob'}/v{version}/{path})"

    return _LINK.sub(replace, readme)


def list_urls(home: str, version: str) -> dict[str, str]:
    """Returns the addresses beside the page: of the source, the documentation, the changes and the issues."""
    if not home:
        return {}
    files = f"{home}/blob/v{version}"
    pages = {"Documentation": f"{files}/docs/index.md", "Changes": f"{files}/CHANGELOG.md", "Issues": f"{home}/issues"}
    return {"Source": home, **pages}


def get_metadata_hook() -> Any:
    """Returns the class that hatchling looks for; only builds have hatchling."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class ProjectPage(MetadataHookInterface):  # type: ignore[misc]
        def update(self, metadata: dict[str, Any]) -> None:
            home, version = self.config["home"].rstrip("/"), metadata["version"]
            text = (Path(self.root) / "README.md").read_text("utf-8")
            text = write_description(text, home, version)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
            metadata["urls"] = list_urls(home, version)

    return ProjectPage
