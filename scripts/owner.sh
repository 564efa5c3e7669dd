# SPDX-License-Identifier: Apache-2.0
# Sourced, with the clone's folder in $root: what sudo makes there belongs to the caller. It is made as
# that user, so root writes nothing where others may put links.
owner=()  # the words in front of a command that makes something in the clone
if [ "$(id -u)" = 0 ] && [ "${SUDO_UID:-0}" != 0 ] && [ "$(stat -c %u "$root")" = "$SUDO_UID" ]; then
    owner=(env "HOME=$(getent passwd "$SUDO_UID" | cut -d: -f6)" setpriv "--reuid=$SUDO_UID"
           "--regid=$(id -g "$SUDO_UID")" --init-groups)
fi
