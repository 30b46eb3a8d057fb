"""Names that Envoy, its bootstrap (envoy/*.yaml) and this package must agree on; each stands here alone."""

# gRPC services that Envoy calls.
PICKS_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
OUTCOMES_SERVICE = "envoy.service.accesslog.v3.AccessLogService"
ENDPOINTS_SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"
ENDPOINTS_TYPE_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
HEADERS_ONLY = ("x-ext-proc-headers-only", "true")
"""Metadata with which our bootstrap says that a stream of picks has one message."""
COMPRESSED_ROUTE = "grpc_compressed"
PROMPTS_ROUTE = "openai"
"""The bootstrap's route of completions by OpenAI's API."""
MAY_BE_COMPRESSED = ("x-ext-proc-may-be-compressed", "true")
"""Likewise, that the body follows, of which Envoy cannot extract fields."""

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MODELS = "/v1/models"
ASKED_ROUTES = ("openai_embeddings", "openai_models")
"""Of which the module does not read the body."""
WITH_PROMPT = ("x-ext-proc-with-prompt", "true")
"""Likewise, that it is one to OpenAI's API, and that its body follows, whole."""
USAGE_NAMESPACE = "balancer.usage"
"""What Envoy's script read of the answer's tokens."""

# A pick: the Endpoint Picker Protocol's namespaces and keys.
DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION = "x-gateway-destination-endpoint"
SERVED = "x-gateway-destination-endpoint-served"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET = "x-gateway-destination-endpoint-subset"
MAX_RETRIES = "x-envoy-max-retries"

# What a pick leaves in Envoy for the outcome to bring back.
DECISION_NAMESPACE = "balancer"
PROCESS_KEY = "process"
NUMBER_KEY = "number"
"""Of a decision: its run and count; empty for a refusal."""
PICK_US_KEY = "pick_us"
"""Left by the module: from the headers of the request to the decision, in microseconds."""
RUN_SEPARATOR = "."
"""In the number of a decision, between the run of the process and its count."""
TRITON_ID_KEY = "triton_request_id"
"""Left by the module, for Envoy's own log: where Envoy asks, it extracts the id itself."""

# Requests.
EXTRACTION = "envoy.filters.http.grpc_field_extraction"
"""Filter, and namespace of the fields that it read in the message."""
REQUEST_ID_HEADER = "x-request-id"
"""The client's own where it sends one; Triton gets the same header."""
GATEWAY_REQUEST_ID_HEADER = "x-gateway-request-id"
"""Set by our Envoy, over whatever the client sent: an x-request-id may be used twice."""
PRINCIPAL_HEADER = "x-gateway-principal"
"""Who sent a request, as Envoy verified it; a client's own is removed."""
MISSING_HEADER = "x-gateway-missing-workers"

# Headers of the Gateway API Inference Extension, read for gateways other than our own Envoy.
GATEWAY_MODEL_HEADER = "x-gateway-model-name"
OBJECTIVE_HEADER = "x-gateway-inference-objective"
FAIRNESS_HEADER = "x-gateway-inference-fairness-id"
"""The tenant."""

# Traces.
TRACE_HEADER = "traceparent"
TRACE_STATE_HEADER = "tracestate"
TRACED_LOG, ANSWERS_LOG = "traced", "answers"
"""The access log of traced requests that Envoy's module decided about."""

# What a pick leaves in Envoy for its audit log and traces.
LOG_NAMESPACE = "balancer.logged"
"""The balancer's; the module uses the decision's."""
POLICY_KEY = "policy"
MODEL_KEY = "model"

# What a pick leaves in Envoy for the filter that writes a version into a request.
SPLIT_NAMESPACE = "balancer.split"
VERSION_KEY = "version"

# Words of a Triton that drains: it has not begun with the request. Envoy's bootstrap has them too.
NOT_EXECUTED_TEXTS = (
    "has no available versions",
    "scheduler for model has stopped accepting new inference requests",
)

NOT_TAKEN = "CANCELLED"
"""All words, and the status, of a Triton that ends before it has begun with a request. The bootstrap has them too."""

# Clusters.
GRPC_CLUSTER = "triton_grpc"
HTTP_CLUSTER = "triton_http"
OPENAI_CLUSTER = "openai"
CLUSTERS = {"grpc": GRPC_CLUSTER, "http": HTTP_CLUSTER, "openai": OPENAI_CLUSTER}
"""Envoy's cluster for each kind of port that a worker may have."""
LAST_KNOWN = {
    GRPC_CLUSTER: "endpoints-grpc.pb",
    HTTP_CLUSTER: "endpoints-http.pb",
    OPENAI_CLUSTER: "endpoints-openai.pb",
}
"""By cluster, the file of its endpoints in the folder that balancer and Envoy share."""
BALANCER_CLUSTER = "balancer"
"""All processes: picks."""
PROXY_CLUSTER = "proxy"
"""Who forwards, with the front end `proxy`: the balancer's processes, and the way around them while all are away."""
PROXY_GRPC_CLUSTER = "proxy_grpc"
PROXY_REST_CLUSTER = "proxy_rest"
PROXY_HEALTH_PATH = "/proxy/health"
"""What Envoy asks there before it sends inferences."""
FORWARDED_FILTER = "balancer.forwarded"
"""Marks requests for models that are forwarded, where not all are."""
FORWARDED_HEADER = f"{DESTINATION}-forwarded"
"""Their mark, set by Envoy. No client's header begins so, since Envoy removes them."""
COMPRESSED_HEADER = f"{DESTINATION}-encoding"
"""The `grpc-encoding` of a request, for a balancer that forwards it: gRPC hides its own."""
FORWARDED = "true"
FORWARDABLE = "forwardable"
"""The route of what the balancer would forward, were its model one of those."""
MOST_FORWARDED = 256
PROXIED = "proxied"
AROUND = "around"
"""The listener within Envoy by which forwarded requests go around a balancer that is away, and its cluster."""
KEPT_FILTER = "balancer.kept"
"""Refuses requests without a balancer where only a balancer keeps what was promised of their model."""
ENDPOINTS_CLUSTER = "balancer_endpoints"
"""All processes: the workers' endpoints."""

FLEET_SERVICE = "balancer.fleet"
"""What Envoy asks after in the health service of the listener for calls about the fleet."""
FLEET_HEALTH_PATH = "/fleet/health"
FLEET_GRPC_CLUSTER = "fleet_grpc"
FLEET_REST_CLUSTER = "fleet_rest"
OR_WORKER = "_or_worker"
"""Ends the name of a cluster that falls back to the workers, or to the way around, while no balancer answers there."""
FLEET_HEADER = f"{DESTINATION}-fleet"
"""Set by Envoy: the balancer answers, so that no worker's outcome is recorded."""

RATE_LIMIT_CLUSTER = "rate_limit"
JWKS_CLUSTER = "jwks"


def process_cluster(process: int) -> str:
    """One process alone, numbered from 0: outcomes of its own picks."""
    return f"balancer_{process}"


# Decisions within Envoy.
NATIVE_FILTER = "balancer.native"
NATIVE = "native"
LEAVES_METADATA = "metadata"
"""In its config: what was decided is left in metadata."""
ASKING = "asking"
"""The listener within Envoy that asks the balancer, and its cluster."""
ASKING_HEADER = f"{DESTINATION}-{ASKING}"
"""Set by the module: the balancer is to be asked. No client's header begins so, since Envoy removes them."""

# Filters that stand before the decision, each where its section of the config is set.
JWT_FILTER = "envoy.filters.http.jwt_authn"
API_KEYS_FILTER = "envoy.filters.http.api_key_auth"
PRINCIPAL_FILTER = "envoy.filters.http.header_mutation"
NAMES_FILTER = "envoy.filters.http.rbac"
LOCAL_RATE_LIMIT_FILTER = "envoy.filters.http.local_ratelimit"
RATE_LIMIT_FILTER = "envoy.filters.http.ratelimit"
BUFFER_FILTER = "envoy.filters.http.buffer"

# Parts of the bootstrap that are filled in.
PICKS_FILTER = "envoy.filters.http.ext_proc"
HEAP_MONITOR = "envoy.resource_monitors.fixed_heap"
CONNECTIONS_MONITOR = "envoy.resource_monitors.global_downstream_max_connections"
OUTCOMES_LOG = "envoy.access_loggers.http_grpc"
FILE_LOG = "envoy.access_loggers.file"
AUDIT_LOG = "balancer.audit"
TRACES_CLUSTER = "traces"
TLS_SOCKET = "envoy.transport_sockets.tls"
TLS_TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
"""Begins the type of each message of TLS; its name follows."""
