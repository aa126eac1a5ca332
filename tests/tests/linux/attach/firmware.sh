# A guest of QEMU's with UEFI, sampled from its start by ptrace.
socket=/run/ovmf.attached
kvmprof attach ovmf --wait --socket $socket --record "$LAB_OUT/ovmf.kvmprof" --hz 200 2>"$LAB_OUT/ovmf.attach" 3>&- &
attached=$!
qemu ovmf 1 nokaslr -M q35 -m 512 -bios /lab/OVMF.fd
says 'workload running'
what=ovmf
gathered_before=0
sampled 100
detach
tell over
ended
