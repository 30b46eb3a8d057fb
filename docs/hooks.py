"""A hook of MkDocs: the site's pages are the Markdown of the whole repository, each where it lies.

MkDocs takes pages from one folder. Here chapters stand beside the code that they explain, so the site takes every file
of the repository under its own path: links between chapters, to pages under docs/ and to source files hold there too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_LIST = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """All files that git does not ignore, but hidden ones, in place of those of `docs_dir`; the theme's stay."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    theme = [file for file in files if file.src_dir is None or not Path(file.src_dir).samefile(docs)]
    listed = subprocess.run(_LIST, cwd=root, check=True, capture_output=True).stdout.decode().split("\0")
    ours = [path for path in sorted(set(listed)) if (root / path).is_file() and not path.startswith(".")]
    return Files([*theme, *(File(path, str(root), config.site_dir, config.use_directory_urls) for path in ours)])
