"""The profile "restricted" of the Kubernetes Pod Security Standards, as a list of violations.

Written from https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline and
restricted). Defaults of a cluster are not assumed: what the profile demands has to be said.
"""

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
}  # fmt: skip
_KINDS = ("initContainers", "containers", "ephemeralContainers")


def violations(pod):
    """What the profile does not let a pod do; nothing for one that it lets in."""
    of_pod = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    for volume in pod.get("volumes", ()):
        found += [f"volume {key}" for key in volume.keys() - {"name"} - _VOLUMES]
    found += [f"sysctl {one['name']}" for one in of_pod.get("sysctls", ())
              if one["name"] not in _SYSCTLS]  # fmt: skip
    found += [f"pod: {one}" for one in _of_any(of_pod)]
    containers = [one for kind in _KINDS for one in pod.get(kind, ())]
    assert containers
    for container in containers:
        found += [f"{container['name']}: {one}" for one in _of_container(container, of_pod)]
    return found


def _of_any(context):
    """Forbidden for a pod and for a container alike."""
    if context.get("runAsUser") == 0:
        yield "runAsUser 0"
    if context.get("runAsNonRoot") is False:
        yield "runAsNonRoot false"
    if context.get("seccompProfile", {}).get("type", "Localhost") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield "seccompProfile"
    if context.get("appArmorProfile", {}).get("type") == "Unconfined":
        yield "appArmorProfile"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"
    selinux = context.get("seLinuxOptions", {})
    types = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
    if selinux.get("type", "") not in types or selinux.get("user") or selinux.get("role"):
        yield "seLinuxOptions"


def _of_container(container, of_pod):
    own = container.get("securityContext", {})
    yield from _of_any(own)
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities are not dropped"
    if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if not own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
        yield "runAsNonRoot"
    if not own.get("seccompProfile", of_pod.get("seccompProfile")):
        yield "seccompProfile"
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield "hostPort"
