"""Small PDFs and notebooks for tests."""

import json
import zlib


def pdf(*pages: str, compressed: bytes | None = None) -> bytes:
    """A PDF with a text on each page; `compressed` replaces the content of all of them."""
    numbers = [4 + 2 * number for number in range(len(pages))]
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in zip(numbers, pages, strict=True):
        content = zlib.compress(f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode())
        content = compressed or content
        objects += [
            (
                "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] "
                f"/Resources << /Font << /F1 3 0 R >> >> /Contents {number + 1} 0 R >>"
            ).encode(),
            b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream"
            % (len(content), content),
        ]
    data, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    return data + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
        % (size, table, size, len(data))
    )


def notebook() -> str:
    """A notebook with a text, a program and its outputs."""
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["42\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}},
        {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "words"]},
        {"cell_type": "code", "source": "print(42)", "outputs": outputs},
    ]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
