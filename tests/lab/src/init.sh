#!/bin/sh
# First process of the lab machine. Beside the console it has streams for standard output, standard error, the output folder (tar) and
# control; /streams knows how they are written in this emulator.
export PATH=/lab:/bin HOME=/root LAB_OUT=/out

mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tracefs none /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm /out /lab
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr
ip link set lo up
hostname lab

. /streams
for module in /modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || echo "lab: $module does not load"; }
done

open_streams
exec 4<>$control
if [ ! -e /dev/kvm ]; then
    echo 'lab: there is no /dev/kvm: the emulator has no virtualization, or this kernel has no KVM for it'
    poweroff -f
fi
chmod 666 /dev/kvm
echo 0 >/proc/sys/kernel/kptr_restrict
ulimit -c 0
ulimit -n 65536
ulimit -l unlimited

# In QEMU the kernel's code has to be still before the command starts; see the program's source.
keeper=
[ ! -e /keeper ] || keeper=$(/keeper) || poweroff -f

# A port can be opened only once at a time, so it can't serve as /dev/stdout.
mkfifo /run/stdout /run/stderr
send_stdout </run/stdout 4>&- &
stdout=$!
send_stderr </run/stderr 4>&- &
stderr=$!

# end_all ID...: ends all processes but the first one, these, the kernel's own, and those that can't be ended, such as one that waits for a
# disk.
end_all() {
    left=yes
    rounds=0
    while [ "$left" ] && [ "$rounds" -lt 500 ]; do
        rounds=$((rounds + 1))
        [ "$rounds" -eq 1 ] || usleep 10000
        left=
        for process in /proc/[0-9]*; do
            id=${process#/proc/}
            case " 1 $* " in *" $id "*) continue ;; esac
            # Kernel threads have no program.
            if readlink "$process/exe" >/dev/null && kill -9 "$id" 2>/dev/null; then left=yes; fi
        done
    done
}

# show_threads: what each thread of a program is doing: its state, processor time in ticks (user, system), and the kernel's functions it is in. One that
# is ending has no program any more; the kernel's own are children of number 2.
show_threads() {
    for thread in /proc/[0-9]*/task/[0-9]*; do
        read -r stat <"$thread/stat" || continue
        set -- ${stat##*) }
        case ${thread#/proc/}/$2/ in 2/* | */2/) continue ;; esac
        echo "lab: ${stat%%)*}) $1 ${12} ${13}$(sed -n '1,5s/^[^ ]* \(.*\)+.*/ \1/p' "$thread/stack" | tr -d '\n')"
    done
}

# The host may ask for the end of the command, and for its output so far. What hangs is seen by its threads.
(
    read -r word <&4
    [ "$word" = stop ] || exit
    echo 'lab: the host stops the command'
    show_threads
    read -r own rest </proc/self/stat
    end_all "$stdout" "$stderr" "$keeper" "$own"
) &

echo ready >&4
cd /root
sh /command </dev/null >/run/stdout 2>/run/stderr 4>&-
status=$?

# Processes that the command left running would keep the streams open.
end_all "$stdout" "$stderr" "$keeper"
wait "$stdout"
wait "$stderr"

cd /
if [ -e /want-out ]; then
    send_folder /out
    # When the machine powers off, output that the emulator has not passed on yet is lost, and the host may receive it slowly.
    while read -r word <&4; do
        [ "$word" = taken ] && break
    done
fi
echo "exit $status" >&4
# A serial port is closed once all has been sent.
exec 4>&-
poweroff -f
