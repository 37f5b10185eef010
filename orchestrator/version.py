"""The release. The distribution's metadata has it from here: an image or a checkout has none."""

VERSION = "0.1.0"
