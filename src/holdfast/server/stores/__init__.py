"""The message stores over HTTP and WebSocket: routes, connected subscribers, permissions and metrics.

hosting         what is open, and for whom             opening             from settings to open stores
service_port    what is asked of the service behind    wire                bodies of requests and answers
access          who may do what in which store         deliveries          who is connected, who gets the next
routes_*        one module for each kind of thing      operations          the hot ones, for both lanes
hot_routes      the hot ones on the fast lane          socket              one WebSocket for each subscriber
in_force        looking definitions up                 definition_edits    changes of a part, as of the whole
figures         counts as documents                    definition_history  the definitions that were in force
store_metrics   counts as metrics                      filtering           ``?attribute=value``
"""
