"""Kubelet's node-local interfaces as data and generated gRPC code.

`deviceplugin_v1beta1_pb2(_grpc)` and `podresources_v1_pb2(_grpc)` are generated from the .proto files beside them;
`checkpoint` reads and writes kubelet's device checkpoint; `constants` holds the names that both sides agree on.
Nothing of ours is imported here, so that kubelet's counterpart and the stand-in share one definition.
"""
