# First process of the profiled guest: runs a workload, the agent, and the tools on its nodes.
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
seconds=$(sed 's/.*seconds=\([0-9]*\).*/\1/' /proc/cmdline)

# shown COMMAND: prints the command as a user would type it, and runs it.
shown() {
    echo "# $1"
    eval "$1"
    echo
}

busy_loop &
part_time &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
while :; do cat /proc/kallsyms >/dev/null; done &
for module in /modules/*.ko; do insmod "$module"; done
kvmprof-tools install-links /bin
echo "report begins"
shown 'pcsd'
shown 'ls -l /dev/pcs /dev/prf*'
shown "getpc --buffers 10 --all $seconds | pcstat"
shown 'prfld'
shown 'prfsnap log'
shown "sleep $seconds"
shown 'prfsnap log'
shown 'prfpr log 2'
shown 'prfstat off'
echo "report ends"
poweroff -f
