"""Makes every key, certificate and kubeconfig that is needed before the API server runs. May run again at any time."""

from __future__ import annotations

from hami_sim.compose import places
from hami_sim.controlplane.credentials import Credentials
from hami_sim.controlplane.layout import CertificateFiles, StateLayout, write_private
from hami_sim.controlplane.pki import CertificateAuthority, Identity
from hami_sim.controlplane.scheduler_config import ExtenderTls, scheduler_configuration


def main() -> None:
    """Entry point."""
    layout = StateLayout(places.CLUSTER)
    layout.create_directories()
    credentials = Credentials(layout, places.APISERVER_URL, server_names=places.SERVER_NAMES)
    credentials.write_all()
    _copy(credentials.issue_serving("webhook", ("webhook", "localhost")), places.serving_files(places.WEBHOOK))
    write_private(layout.scheduler_config, _scheduler_configuration(layout))


def _scheduler_configuration(layout: StateLayout) -> bytes:
    """Of kube-scheduler, with the certificates of both sides: who may ask the extender may bind pods, so that it has an
    authority of its own, which no other client's certificate comes from."""
    authority = CertificateAuthority.load_or_create(layout.certificate("extender-ca"), "hami-extender")
    authority.issue_server(places.serving_files(places.SCHEDULER), places.EXTENDER_NAME, (places.EXTENDER_NAME,))
    write_private(places.client_ca(places.SCHEDULER), authority.certificate_pem)
    client = authority.issue_client(layout.certificate("extender-client"), Identity("kube-scheduler"))
    return scheduler_configuration(
        layout.component_kubeconfig("kube-scheduler"),
        places.EXTENDER_URL,
        extender_tls=ExtenderTls(
            server_name=places.EXTENDER_NAME,
            certificate=str(client.certificate),
            key=str(client.key),
            ca=str(layout.certificate("extender-ca").certificate),
        ),
    )


def _copy(source: CertificateFiles, target: CertificateFiles) -> None:
    for origin, copy in zip(source, target, strict=True):
        write_private(copy, origin.read_bytes())


if __name__ == "__main__":
    main()
