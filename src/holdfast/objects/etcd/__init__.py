"""The object store on etcd: three machines with disks, and nothing else.

layout      which keys hold what                                           pure
wire        the messages of etcd's API, to and from bytes                  pure
procedures  what each call of the port asks, and what the replies mean     pure
failures    what an error of etcd means                                    pure
address     the URL, and the credentials
members     which member is asked, how long, and which cluster is ours
channel     gRPC to one endpoint
store       the port
trial       members and services on this machine, to try out
"""
