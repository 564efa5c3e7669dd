# SPDX-License-Identifier: Apache-2.0
"""The words of tcpkmon top: keys to sort by, groups, short names of states."""

SORTS = ("rate", "acked", "received", "retransmits", "srtt_us", "min_rtt_us", "snd_cwnd_segs", "id")
OWNERS = ("unit", "container", "pod")
"""Of a capture with ids of control groups; fields of Group."""
GROUPS = ("port", "peer", "process", "command", *OWNERS)
GROUP_SORTS = ("rate", "acked", "received", "retransmits", "opened", "closed", "open")
STATES = ("", "ESTAB", "SYN-S", "SYN-R", "FIN1", "FIN2", "TIMEW", "CLOSE", "CLOSEW", "LASTA",
          "LISTEN", "CLOSNG")  # fmt: skip
"""By the kernel's number."""
MOST_WANTED = 100
"""Characters of the filter's text."""
