"""Front end "pick": the Endpoint Picker Protocol over Envoy's ext_proc (see README.md)."""
