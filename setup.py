"""Packs what lies beside the packages and is read at run time; everything else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# app/config.py finds them: beside `app` in a checkout, within it in a wheel.
FOLDERS = ("migrations", "models_store", "seed_data")


class WithData(build_py):
    """Puts the folders into the package `app` of a wheel."""

    def run(self) -> None:
        """Build the packages, then add the folders."""
        super().run()
        if not self.editable_mode:
            for folder in FOLDERS:
                target = Path(self.build_lib, "app", "_data", folder)
                shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithData})
