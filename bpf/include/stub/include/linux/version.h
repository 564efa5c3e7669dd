/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Not this kernel's version: presence is asked of BTF, a version is never compared. Only BCC's own
 * headers look at it; the value is the first release whose BTF it can be.
 */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#define LINUX_VERSION_CODE      KERNEL_VERSION(5, 2, 0)
