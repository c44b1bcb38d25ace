#!/usr/bin/env bash
# Installs lilbox from a build tree: programs, kernel, base image, completions.
# usage: ./install.sh [--prefix DIR] [--from TARGETDIR] [--uninstall]
set -euo pipefail

prefix=/usr/local
from="$(dirname "$0")/target"
uninstall=false
while [ $# -gt 0 ]; do
    case "$1" in
    --prefix) prefix="${2:?--prefix needs a directory}"; shift 2 ;;
    --from) from="${2:?--from needs a directory}"; shift 2 ;;
    --uninstall) uninstall=true; shift ;;
    -h | --help)
        sed -n 's/^# //p' "$0" | sed -n '1,2p'
        exit 0
        ;;
    *)
        echo "error: unknown option '$1'" >&2
        exit 2
        ;;
    esac
done

bin="$prefix/bin"
libexec="$prefix/libexec/lilbox"
share="$prefix/share/lilbox"
completions=(
    "bash:$prefix/share/bash-completion/completions/lilbox"
    "zsh:$prefix/share/zsh/site-functions/_lilbox"
    "fish:$prefix/share/fish/vendor_completions.d/lilbox.fish"
)

if "$uninstall"; then
    rm -rf "$bin/lilbox" "$libexec" "$share"
    for entry in "${completions[@]}"; do rm -f "${entry#*:}"; done
    echo "removed lilbox from $prefix (boxes and images of users are untouched)" >&2
    exit 0
fi

for file in release/lilbox release/lilbox-vmm share/lilbox/vmlinux share/lilbox/base.erofs share/lilbox/base.json; do
    if [ ! -f "$from/$file" ]; then
        echo "error: $from/$file is missing" >&2
        echo "fix: build first: make build" >&2
        exit 1
    fi
done

# Each file is written aside and renamed, so that running boxes and commands keep the one they have.
put() { # mode source target
    mkdir -p "$(dirname "$3")"
    install -m "$1" "$2" "$3.new"
    mv -f "$3.new" "$3"
}
put 755 "$from/release/lilbox-vmm" "$libexec/lilbox-vmm"
for file in vmlinux base.erofs base.json; do put 644 "$from/share/lilbox/$file" "$share/$file"; done
put 755 "$from/release/lilbox" "$bin/lilbox"
for entry in "${completions[@]}"; do
    mkdir -p "$(dirname "${entry#*:}")"
    "$bin/lilbox" completions "${entry%%:*}" >"${entry#*:}"
done
echo "installed lilbox $("$bin/lilbox" --version | cut -d' ' -f2) in $prefix" >&2
