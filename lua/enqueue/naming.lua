--[[ naming: which of a call's jobs may have the names that they ask for, and which jobs they replace.

A job whose name another one holds is not accepted. But if its kind says `replace`, and the other one waits and was never claimed, that
one leaves, and the new job is in its place. Of several such jobs of one call with one name, the last one is accepted.

The `seldom` list `wanted` has by record the field of `slots` for its name, `digests` and `names` what its digest is made of; `asked`
has who holds each of these fields, `taken` fields and ids of the names that are taken, `replaced` what the event says of each job that
is replaced.

Keys: slots state
Uses: call(seldom seldom_list) batch(call_many read_many) names(name_field) state(read_line) ended(leaves) withdrawal(withdraw)
]]

--- A record asks for the name that stands behind its digest. False if none stands there.
local function want_name(i, digest)
  local plain, name = digest:match('^(%x+) ([%w_.:~%%/=,-]+)$')
  if not plain then
    return false
  end
  seldom_list('wanted')[i] = name_field(name)
  seldom_list('digests')[i], seldom_list('names')[i] = plain, name
  return true
end

--- Read who holds the names. `kind_at(i)` is the kind of record i, nil if its job is a duplicate.
local function read_holders(size, kind_at)
  local wanted, held_by, fields = seldom.wanted, seldom_list('holders'), {}
  local candidates, last, replaceable = seldom_list('waiting'), seldom_list('last'), {}
  for i = 1, size do
    local field = wanted and wanted[i]
    if field and held_by[field] == nil then
      held_by[field] = false
      fields[#fields + 1] = field
    end
  end
  local held = read_many(slots, fields)
  for i = 1, #fields do
    held_by[fields[i]] = held[i]
  end
  for i = 1, size do
    local field = wanted and wanted[i]
    local kind = field and kind_at(i)
    if kind and kind.unique == 'replace' then
      last[field] = i
      local holder = held_by[field]
      if holder and candidates[holder] == nil then
        candidates[holder] = false
        replaceable[#replaceable + 1] = holder
      end
    end
  end
  local lines = read_many(state, replaceable)
  for i = 1, #replaceable do
    local job = read_line(lines[i])
    if job and not job.claim and (job.state == 'ready' or job.state == 'scheduled') then
      candidates[replaceable[i]] = job
    end
  end
end

--- Who keeps the name of a record's job from it; nil if it may have the name. `ids` are those of the records.
local function kept_by(i, kind, ids)
  local field = seldom.wanted[i]
  local holder = seldom.holders[field]
  if kind.unique == 'replace' then
    local last = seldom.last[field]
    -- There is none if all records that ask for the name have ids of records before them.
    if last and last ~= i then
      return ids[last]
    elseif last and holder and seldom.waiting[holder] then
      return nil
    end
  end
  return holder or nil
end

--- A record's job is accepted: it takes its name. Returns its digest, its name, and the id of the job that it replaces, if it
--- replaces one.
local function take_name(i, id)
  local field = seldom.wanted[i]
  local old = seldom.holders[field] or nil
  if old then
    local job = seldom.waiting[old]
    leaves(old, job)
    withdraw(old, job)
    local replaced = seldom_list('replaced')
    replaced[#replaced + 1] = '["' .. old .. '","' .. id .. '"]'
  end
  seldom_list('holders')[field] = id
  local taken = seldom_list('taken')
  taken[#taken + 1], taken[#taken + 2] = field, id
  return seldom.digests[i], seldom.names[i], old
end

local function write_names()
  call_many('HSET', slots, seldom.taken)
end
