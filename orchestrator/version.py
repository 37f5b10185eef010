"""The release. The distribution's metadata is made from it: an image or a checkout has none."""

VERSION = "0.1.0"
