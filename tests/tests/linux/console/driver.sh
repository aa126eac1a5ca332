start ports --kernel /lab/vmlinuz --initrd /lab/ports.cpio \
    --cmdline "console=ttyS0 $quick"
says ready
kvmprof status --socket "$socket" --json >"$LAB_OUT/ports.status.json"
tell off
ended

# A guest whose only console is hvc0, on a terminal of the lab's.
name=terminal
console=$LAB_OUT/terminal.console
chmod +x /lab/terminal
mkfifo /run/keys
exec 3<>/run/keys
cat >/run/on-terminal <<'END'
tty >/run/terminal
stty -g >/run/before
kvmprof run --kernel /lab/vmlinuz --initrd /lab/terminal.cpio --console hvc \
    --cmdline "console=hvc0 $quick" 2>$LAB_OUT/terminal.stderr
echo $? >$LAB_OUT/terminal.status
stty -g | cmp - /run/before && echo "terminal restored"
END
/lab/terminal sh /run/on-terminal </run/keys >"$console" 3>&- &
machine=$!
says ready
stty -F "$(cat /run/terminal)" rows 44 cols 122
says resized
tell off
wait $machine
