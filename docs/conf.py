"""How the pages are built: sphinx-build -W -n -b html docs OUT."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # figures are drawn here; read when NumPy loads
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE / "_figures")]

import kvref  # noqa: E402  # after the thread count

project = "kvref"
author = "the kvref authors"
copyright = "the kvref authors, Apache-2.0"
version = release = kvref.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "kvref_spec"]
exclude_patterns = ["_generated", "examples", "_figures", "_ext"]
nitpicky = True

# Types are for checkers; a reader needs the shapes, and those are in the docstrings.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False
# Types of attributes that are not ours; the pages of their libraries are not looked up while building.
nitpick_ignore_regex = [
    ("py:class", r"(numpy|typing|collections|ml_dtypes|pathlib|Array|ArrayLike|NDArray).*")
]

myst_enable_extensions = ["colon_fence", "deflist"]
smartquotes = False  # options begin with two hyphens
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # an included chapter begins where the page's own heading would stand

html_theme = "furo"
html_title = f"kvref {version}"
html_static_path = ["_static"]
html_css_files = ["kvref.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c8a", "color-brand-content": "#0b5c8a"},
    "dark_css_variables": {"color-brand-primary": "#7cc4ec", "color-brand-content": "#7cc4ec"},
}
