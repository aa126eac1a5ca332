jailed virtiofsd /lab/virtiofsd
mkdir -p /run/work /run/other /run/empty /run/root/bin
chmod 755 /lab/calls
head -c 1000000 /dev/urandom >/run/work/file
cp /run/work/file /run/other/
cp /lab/calls /run/work/
sha256sum /run/work/file | cut -d ' ' -f 1 >"$LAB_OUT/file.sum"
# What is below a folder for one guest is the root of another.
cp /bin/busybox /lab/calls /run/root/bin/
for applet in sh cat ls touch rm kill mount sleep free nproc tty; do ln -s busybox "/run/root/bin/$applet"; done
# daemons FOLDER: the ids of those that serve it.
daemons() {
    for process in /proc/[0-9]*; do
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -q "^/bin/virtiofsd.*[ =]$1 " && echo "${process#/proc/}"
    done
}
list() { (cd "$1" && find . -exec stat -c '%n %s %Y %Z' {} + | sort); }

start folder --kernel /lab/vmlinux-6.12 --initrd /lab/guest.cpio --memory 256M --cpus 2 --jitter \
    --cmdline "console=ttyS0 $quick nowatchdog" --virtiofsd /run/jailed-virtiofsd \
    --share /run/work=work --share /run/other=other,readonly
says "calls runs"
record folder.kvmprof
sampled 300
stop_recording
tell on
says "may be killed"
serving=$(daemons /run/work)
[ "$serving" ] || fail 90 "nobody serves /run/work"
kill -STOP $serving
tell on
says "asks"
kill -9 $serving
until grep -q "work has failed" "$LAB_OUT/folder.stderr"; do
    is_over && fail 89 "over before it said so"
    usleep 100000
done
says "goes on"
kvmprof status --socket "$socket" --json >"$LAB_OUT/folder.status.json"
kvmprof status --socket "$socket" >"$LAB_OUT/folder.status.text"
tell on
kill $machine
ended
cp /run/work/moved "$LAB_OUT/moved"
ls /run/other >"$LAB_OUT/other.list"
kvmprof report --json "$LAB_OUT/folder.kvmprof" >"$LAB_OUT/folder.json"

# A root: nothing of it may change on the host.
list /run/root >/run/before
start root --kernel /lab/vmlinuz-6.1 --memory "$(cat /lab/memory)" --cpus 2 --jitter --modules /lab/modules \
    --cmdline "console=ttyS0 $quick nowatchdog" --virtiofsd /run/jailed-virtiofsd --sysroot /run/empty \
    --root /run/root --exec '
        tty; nproc
        free -m | while read -r name total _; do [ "$name" = Mem: ] && echo "memory $total"; done
        mount
        touch /new && rm /bin/tty && echo "changed"
        calls & calls=$!
        until [ "$(cat /proc/$calls/comm)" = calls ]; do :; done
        cat /bin/calls >/dev/null
        echo "calls runs"
        read -r word
        kill $calls
        exit 7'
says "calls runs"
record root.kvmprof
sampled 300
stop_recording
tell on
ended
list /run/root >/run/after
cmp /run/before /run/after && touch "$LAB_OUT/unchanged"
kvmprof report --json "$LAB_OUT/root.kvmprof" >"$LAB_OUT/root.json"

# A shell on the console, whose driver is a module, and whose terminal it finds in /dev if the folder has that. Its Ctrl-C is its own, and so is its status. What it runs has names by the folder.
mkdir /run/root/dev
start shell --kernel /lab/vmlinuz-6.1 --memory 256M --modules /lab/modules --console hvc \
    --cmdline "console=hvc0 $quick nowatchdog" --virtiofsd /run/jailed-virtiofsd --root /run/root,rw \
    --record "$LAB_OUT/shell.kvmprof" --jitter
tell 'calls & echo "shell on $(tty)"; echo by the guest >/by-guest; sleep 100000; echo not here'
says "shell on /dev/hvc0"
gathered_before=$(count)
sampled 300
printf '\003' >&3
tell 'echo after; exit 3'
says after
ended
kvmprof report --json "$LAB_OUT/shell.kvmprof" >"$LAB_OUT/shell.json"
cp /run/root/by-guest "$LAB_OUT/"

# What serves the folder ends with kvmprof, however that does.
start killed --kernel /lab/vmlinuz-6.1 --memory 256M --modules /lab/modules \
    --cmdline "console=ttyS0 $quick nowatchdog" --virtiofsd /run/jailed-virtiofsd --root /run/root
until daemons /run/root >"$LAB_OUT/daemons"; [ -s "$LAB_OUT/daemons" ]; do
    is_over && fail 88 "over before anybody served /run/root"
    usleep 100000
done
kill -9 $machine
wait $machine
exec 3>&-
while [ "$(daemons /run/root)" ]; do usleep 100000; done
