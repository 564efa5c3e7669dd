# SPDX-License-Identifier: Apache-2.0
"""The control plane: the server of a control socket, its client, and the handlers of requests."""

__all__ = ["access", "choosing", "client", "handlers", "lines", "server"]
