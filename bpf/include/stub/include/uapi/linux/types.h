/* SPDX-License-Identifier: GPL-2.0-only */
/* Empty on purpose: BCC includes it; what a program needs comes from BTF
 * (collector/plan/kernel_types.py). */
