"""Rewrite perfmodel/hardware/index.json after a device file's names changed."""

import json
import os

from perfmodel.hardware.catalog import INDEX, build_index


def main() -> None:
    """Write the index beside the device files."""
    text = json.dumps(build_index(), indent=0, ensure_ascii=False) + "\n"
    fresh = INDEX.with_suffix(".tmp")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, INDEX)


if __name__ == "__main__":
    main()
