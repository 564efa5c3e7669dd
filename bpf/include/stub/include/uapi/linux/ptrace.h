/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty: BCC includes it. All types come from BTF (collector/plan/kernel_types.py). */
