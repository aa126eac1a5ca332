jailed virtiofsd /lab/virtiofsd
mkdir -p /run/work /run/sockets
head -c 200000 /dev/urandom >/run/work/file
cp /run/work/file /run/www/file
sha256sum /run/work/file | cut -d ' ' -f 1 >"$LAB_OUT/file.sum"
httpd -p 8080 -h /run/www

# helpers NAME: the processes of the guest's kvmprof, by name.
helpers() {
    for process in /proc/[0-9]*; do
        read -r comm <"$process/comm" 2>/dev/null && case $comm in kvmprof-* | passt*) echo "$comm" ;; esac
    done | sort >"$LAB_OUT/$1.helpers"
}

# asks: has the status told, again and again, until the attacks are over. A line for each answer: its time in hundredths of a second.
asks() {
    while [ ! -e /run/over ]; do
        read -r before _ </proc/uptime
        if kvmprof status --socket "$socket" --json >/run/asked 2>/run/not-asked; then
            read -r now _ </proc/uptime
            echo $((${now%.*}${now#*.} - ${before%.*}${before#*.})) >>"$LAB_OUT/answers"
        else
            cat /run/not-asked >>"$LAB_OUT/failures"
        fi
        usleep 100000
    done
}

: >"$LAB_OUT/failures"
start_passt
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 \
    --cmdline "console=ttyS0 $quick nowatchdog" --virtiofsd /run/jailed-virtiofsd \
    --net socket=/run/passt/socket --vsock 3,socket=/run/sockets/guest --share /run/work=work
says attacking
helpers before
record guest.kvmprof
asks 3>&- &
asking=$!
tell go on
says over
touch /run/over
wait $asking
stop_recording
kvmprof status --socket "$socket" --json >"$LAB_OUT/attacked.json"
helpers after
sockets listen unix:/run/sockets/guest_1234 </run/work/file >/run/taken 2>/dev/null 3>&- &
taking=$!
until [ -S /run/sockets/guest_1234 ]; do usleep 20000; done
# It goes away with a connection that was broken.
[ -e "/proc/$passt/exe" ] || start_passt
tell go on
says usable
wait $taking
sha256sum /run/taken | cut -d ' ' -f 1 >"$LAB_OUT/taken.sum"
tell off
ended
