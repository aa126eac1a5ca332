# A guest with a process of its own that is busy in user mode. When it is told to, it runs a guest, too.
mount -t sysfs none /sys

# missing WORD...: says why there is no nested guest.
missing() { echo "no nested guest: $*"; }

grep -qw svm /proc/cpuinfo || missing 'the processor has no SVM'
for module in /modules/*.ko; do
    insmod "$module" || missing "$module doesn't load"
done
[ -e /dev/kvm ] || missing 'there is no /dev/kvm'
# Without it a nested guest isn't told from the guest.
[ "$(cat /sys/module/kvm_amd/parameters/npt)" = Y ] || missing 'kvm_amd uses no nested paging'
one & one=$!
echo "pid one $one"
echo workload running
while read -r word; do
    case $word in
    nest)
        mkfifo /run/nested.console
        kvmprof run --kernel /bin/demo.elf --memory 64M --console stdio \
            </dev/null >/run/nested.console 2>/run/nested.stderr &
        vmm=$!
        echo "pid vmm $vmm"
        # The nested guest's first instructions write a line. To wait for it, no process is started: by ptrace, memory is read through the page
        # tables of the process that was seen last on the vCPU, and those of one that has ended are gone.
        exec 4</run/nested.console
        if read -r line <&4; then
            echo "nested guest says $line"
        else
            wait $vmm
            missing "kvmprof has ended with status $?: $(cat /run/nested.stderr)"
        fi
        echo tried
        ;;
    look)
        [ -e "/proc/$vmm/exe" ] || missing "kvmprof has ended: $(cat /run/nested.stderr)"
        echo looked
        ;;
    over) poweroff -f ;;
    esac
done
