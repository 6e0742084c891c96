--[[ names: the names of unique jobs. `slots` says which job holds a name, and until when, if an instant is set. A job takes its name
when it is accepted, and a retry never takes it again. Its line says until when the name stands (`stands`): `claim:MS`, until
its first claim, for which it is ready by MS at the latest; `until:MS`, until that instant (Unix ms), whatever becomes of the job;
without it, until the job ends, however often it is retried. ]]

--- The field of `slots` that says who holds a name. (The name of a slot has no slash, and that of a job has one.)
local function name_field(name)
  return 'unique|' .. name
end

--- The member of `expiring` at the instant until which a name stands.
local function name_mark(name)
  return 'name|' .. name
end

--- The job that holds a name, by what the field has; nil if there is none (any more), whether the field was swept or not.
local function holder_in(value, at)
  if not value then
    return nil
  end
  local id, ms = value:match('^(%S+) (%d+)$')
  if ms then
    return tonumber(ms) > at and id or nil
  end
  return value
end

--- Whether a job whose record this is holds its name, and until which instant, if one is set.
local function holds_name(job, at)
  if not job.unique then
    return false
  end
  local how, ms = (job.stands or ''):match('^(%l+):(%d+)$')
  if how == 'until' then
    return tonumber(ms) > at, ms
  end
  return job.state ~= 'dead' and not (how == 'claim' and job.claim)
end
