# SPDX-License-Identifier: Apache-2.0
"""A capture as one HTML file that opens from a mail: what it says, its proof, its graphs.

data      what the page shows, in bounded size
courses   the graphs' points, thinned; where records are missing they are broken
rates     throughput and goodput
host      tables of the host, where its schemata were recorded
tracks    what ran on it along time
page      the document; assets/ has its script and style, uplot/ the library that draws
"""

from tcpkmon.formats.report.data import collect
from tcpkmon.formats.report.page import make_page

__all__ = ["collect", "make_page"]
