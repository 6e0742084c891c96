--[[ names: the names of unique jobs. `slots` says which job holds a name: one that is alive and not dead. A job takes its name when it
is accepted, and keeps it until it ends, however often it is retried. ]]

--- The field of `slots` that says who holds a name. (The name of a slot has no slash, and that of a job has one.)
local function name_field(name)
  return 'unique|' .. name
end
