"""PDFs written by hand: pages of lines, or any content."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def pdf(*pages: Sequence[str], title: str = "") -> bytes:
    """A PDF with a page for each sequence of lines."""
    shown = [" ".join(f"({line}) Tj T*" for line in lines) for lines in pages]
    return with_content(*(f"BT /F 10 Tf 50 750 Td 12 TL {text} ET".encode() for text in shown), title=title)


def with_content(*contents: bytes, title: str = "", xobjects: Sequence[bytes] = ()) -> bytes:
    """A PDF with a page for each content stream. xobjects: streams by the names X0, X1, ..., each may use all."""
    first = 5 + len(xobjects)  # number of the first page's object
    names = " ".join(f"/X{i} {5 + i} 0 R" for i in range(len(xobjects)))
    resources = f"/Resources << /Font << /F 3 0 R >> /XObject << {names} >> >>"
    kids = " ".join(f"{first + 2 * i} 0 R" for i in range(len(contents)))
    form = f"/Type /XObject /Subtype /Form /BBox [0 0 612 792] {resources}"
    page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {resources} /Contents"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Title ({title}) >>".encode(),
        *(_stream(form, content) for content in xobjects),
    ]
    for i, content in enumerate(contents):
        objects += [f"{page} {first + 2 * i + 1} 0 R >>".encode(), _stream("", content)]
    out, places = b"%PDF-1.4\n", list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>" % (len(objects) + 1)
    xref = b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    return out + xref + trailer + b"\nstartxref\n%d\n%%%%EOF\n" % len(out)


def _stream(about: str, content: bytes) -> bytes:
    packed = zlib.compress(content)
    return b"<< %s /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (about.encode(), len(packed), packed)
