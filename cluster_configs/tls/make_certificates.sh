#!/usr/bin/env bash
# An authority of your own and one certificate for all members of your clusters.
#   make_certificates.sh FOLDER [DAYS]      (DAYS: how long the certificate is valid, default 365)
# Anyone who has FOLDER/member.key can run code as you on your clusters: keep the folder on a file system
# that your nodes see, readable by you alone. ca.key is needed to make further certificates only; best
# move it away. Run again with the same folder for a new member certificate of the same authority.
set -euo pipefail
folder=${1:?usage: make_certificates.sh FOLDER [DAYS]}
days=${2:-365}
command -v openssl > /dev/null || { echo "openssl is not here: install it (apt install openssl)" >&2; exit 1; }
umask 077
mkdir -p "$folder"
cd "$folder"
# what openssl says of its progress is of no interest, unless it fails
quietly() {
    local said
    said=$(openssl "$@" 2>&1) || { printf '%s\n' "$said" "openssl $1 failed: no certificates were made" >&2; exit 1; }
}
key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

if [ ! -e ca.key ]; then
    [ ! -e ca.pem ] || { echo "$folder has ca.pem but not its ca.key: bring it back first" >&2; exit 1; }
    quietly req -x509 "${key[@]}" -keyout ca.key -out ca.pem -days 3650 -subj "/CN=gmkcf authority" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
fi
quietly req "${key[@]}" -keyout member.key -out member.csr -subj "/CN=gmkcf member"
# a member is client and server, and may sign nothing
printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
    "extendedKeyUsage=serverAuth,clientAuth" "authorityKeyIdentifier=keyid" \
    "subjectKeyIdentifier=hash" > member.ext
quietly x509 -req -in member.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
    -extfile member.ext -out member.pem
rm -f member.csr member.ext
echo "made $folder/ca.pem, member.pem and member.key, valid for $days days"
