# A date that no clock that stands still would have.
date -s "2031-05-06 07:08:09" >/dev/null
head -c 2000000 /dev/urandom >/run/file
sum() { sha256sum <"$1" | cut -d ' ' -f 1 >"$LAB_OUT/$2.sum"; }
sum /run/file file

sockets listen unix:/run/vsock_1234 </run/file >/run/taken 2>/dev/null &
taking=$!
until [ -S /run/vsock_1234 ]; do usleep 20000; done
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cmdline "console=ttyS0 $quick" \
    --vsock 3,socket=/run/vsock
says "in "
date +%s >"$LAB_OUT/now"
wait $taking
sum /run/taken taken
says "listening"
{ printf 'CONNECT 52\n'; cat /run/file; } | sockets connect unix:/run/vsock >/run/answer
head -n 1 /run/answer >"$LAB_OUT/answer"
tail -n +2 /run/answer >/run/rest
sum /run/rest rest
says "served "
# Nobody listens there.
printf 'CONNECT 53\n' | sockets connect unix:/run/vsock >"$LAB_OUT/nobody"
printf 'HELLO\n' | sockets connect unix:/run/vsock >"$LAB_OUT/nonsense"

kvmprof status --socket "$socket" --json >"$LAB_OUT/end.json"
tell off
ended
